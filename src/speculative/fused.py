"""Attention of a few queries in one piece of compiled code: scores, softmax and the mix of values, a head at a time.

    score_j = q . k_j / sqrt(d)      for every position j up to the query's own
    p_j     = exp(score_j - largest)
    out     = sum of p_j v_j / sum of p_j

A query of one head is one piece of work, done by one thread, over exactly the positions that it sees: so its bits
depend neither on the queries beside it nor on threads. Everything is float32. The exponential is 2^n 2^f with n a
whole number and |f| <= 1/2, and 2^f its Taylor series to the seventh power, exact to the last bit or two.
"""

import math
from collections.abc import Callable
from functools import cache

import torch

from .native import SHARE, VECTOR, available, compiled, task

LANES = 16
Task, FIELDS = task(
    ("q", "k", "v", "out", "scores"),
    ("count", "heads", "shared", "start", "q_stride", "k_stride", "v_stride", "room"),
)
FMA = f"call {VECTOR} @llvm.fma.v16f32"


def fits(dim: int, device, dtype) -> bool:
    """Whether heads of `dim` numbers can be attended to here."""
    return torch.device(device).type == "cpu" and dtype == torch.float32 and dim % LANES == 0 and available()


def fused(start: int, n: int, device, dtype) -> Callable:
    """The form of `attention.FORMS`; for heads that `fits` refuses it fails."""
    given, room = Task(start=start), -(-(start + n) // LANES) * LANES
    state = []

    def attend(q, k, v):
        if not state:  # the same in all layers
            heads = q.shape[1]
            given.heads, given.shared, given.count = heads, heads // len(k), n * heads
            given.q_stride, given.k_stride, given.v_stride, given.room = q.stride(0), k.stride(0), v.stride(0), room
            scores = torch.empty(n * heads, room, dtype=torch.float32)
            given.scores = scores.data_ptr()
            state.extend((compiled(_text(q.shape[2])), scores))
        out = torch.empty(n, q.shape[1] * q.shape[2], dtype=torch.float32)
        given.q, given.k, given.v, given.out = q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr()
        state[0](given)
        return out

    return attend


def _constant(value: float) -> str:
    """16 times a number, in LLVM's notation of float32."""
    exact = torch.tensor(value, dtype=torch.float32).double().item()
    bits = torch.tensor(exact, dtype=torch.float64).view(torch.int64).item() & (2**64 - 1)
    return f"splat (float 0x{bits:016X})"


def _exp2(of: str) -> str:
    """Lines that make %power of vector `of`, no entry of which is above 0; 2^-126 below -126, NaN of NaN."""
    series = [math.log(2) ** i / math.factorial(i) for i in range(8)]
    lines = [
        f"%bounded = call {VECTOR} @llvm.maximum.v16f32({VECTOR} {of}, {VECTOR} {_constant(-126.0)})",
        f"%whole = call {VECTOR} @llvm.rint.v16f32({VECTOR} %bounded)",
        f"%rest = fsub {VECTOR} %bounded, %whole",
    ]
    before = _constant(series[7])
    for i in reversed(range(7)):
        lines.append(f"%series{i} = {FMA}({VECTOR} {before}, {VECTOR} %rest, {VECTOR} {_constant(series[i])})")
        before = f"%series{i}"
    lines += [
        f"%exponent = fptosi {VECTOR} %whole to <16 x i32>",
        "%biased = add <16 x i32> %exponent, splat (i32 127)",
        "%shifted = shl <16 x i32> %biased, splat (i32 23)",
        f"%factor = bitcast <16 x i32> %shifted to {VECTOR}",
        f"%power = fmul {VECTOR} %series0, %factor",
    ]
    return "\n  ".join(lines)


def _splat(name: str, scalar: str) -> str:
    """Lines that make %name of 16 times a scalar."""
    return (
        f"%{name}_0 = insertelement {VECTOR} poison, float {scalar}, i64 0\n"
        f"  %{name} = shufflevector {VECTOR} %{name}_0, {VECTOR} poison, <16 x i32> zeroinitializer"
    )


def _each(dim: int, template: str) -> str:
    """A line for each vector of a head: # is its number, $ its first dimension."""
    vectors = range(dim // LANES)
    return "\n".join("  " + template.replace("#", str(i)).replace("$", str(i * LANES)) for i in vectors)


@cache
def _text(dim: int) -> str:
    """In LLVM's language, for heads of `dim` numbers: a thread takes its share of the n * heads queries."""
    return f"""
define void @work(ptr %task) {{
entry:
{FIELDS}{SHARE}
  br i1 %any, label %query, label %done
query:
  %piece = phi i64 [%first, %entry], [%piece_next, %end_of_query]
  %row = udiv i64 %piece, %heads
  %head = urem i64 %piece, %heads
  %kv_head = udiv i64 %head, %shared
  %seen_before = add i64 %start, %row
  %seen = add i64 %seen_before, 1
  %row_offset = mul i64 %row, %q_stride
  %head_offset = mul i64 %head, {dim}
  %q_offset = add i64 %row_offset, %head_offset
  %k_offset = mul i64 %kv_head, %k_stride
  %v_offset = mul i64 %kv_head, %v_stride
  %out_offset = mul i64 %piece, {dim}
  %score_offset = mul i64 %piece, %room
  %my_q = getelementptr float, ptr %q, i64 %q_offset
  %my_k = getelementptr float, ptr %k, i64 %k_offset
  %my_v = getelementptr float, ptr %v, i64 %v_offset
  %my_out = getelementptr float, ptr %out, i64 %out_offset
  %my_scores = getelementptr float, ptr %scores, i64 %score_offset
{_scores(dim)}
{_weights(dim)}
{_mix(dim)}
end_of_query:
  %piece_next = add i64 %piece, 1
  %more = icmp ult i64 %piece_next, %last
  br i1 %more, label %query, label %done
done:
  ret void
}}"""


def _scores(dim: int) -> str:
    """q . k_j of the %seen keys, the %larger of all, and -inf up to %b, the next multiple of 16."""
    dots = [f"%dot0 = fmul {VECTOR} %q0, %k0"]
    dots += [f"%dot{i} = {FMA}({VECTOR} %q{i}, {VECTOR} %k{i}, {VECTOR} %dot{i - 1})" for i in range(1, dim // LANES)]
    return f"""{_each(dim, "%at_q# = getelementptr float, ptr %my_q, i64 $")}
{_each(dim, f"%q# = load {VECTOR}, ptr %at_q#, align 4")}
  br label %score
score:
  %j = phi i64 [0, %query], [%j_next, %score]
  %largest = phi float [0xFFF0000000000000, %query], [%larger, %score]
  %j_offset = mul i64 %j, {dim}
  %k_j = getelementptr float, ptr %my_k, i64 %j_offset
{_each(dim, "%at_k# = getelementptr float, ptr %k_j, i64 $")}
{_each(dim, f"%k# = load {VECTOR}, ptr %at_k#, align 4")}
  {chr(10).join(dots)}
  %sum = call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {VECTOR} %dot{dim // LANES - 1})
  %at_score = getelementptr float, ptr %my_scores, i64 %j
  store float %sum, ptr %at_score, align 4
  %larger = call float @llvm.maxnum.f32(float %largest, float %sum)
  %j_next = add i64 %j, 1
  %more_keys = icmp ult i64 %j_next, %seen
  br i1 %more_keys, label %score, label %pad
pad:
  %b = phi i64 [%seen, %score], [%b_next, %padded]
  %b_rest = urem i64 %b, {LANES}
  %whole_block = icmp eq i64 %b_rest, 0
  br i1 %whole_block, label %weigh, label %padded
padded:
  %at_pad = getelementptr float, ptr %my_scores, i64 %b
  store float 0xFFF0000000000000, ptr %at_pad, align 4
  %b_next = add i64 %b, 1
  br label %pad"""


def _weights(dim: int) -> str:
    """exp((score - largest) / sqrt(d)) in place of each score, and the sum, %all_weights."""
    return f"""weigh:
  {_splat("most", "%larger")}
  br label %weights
weights:
  %w = phi i64 [0, %weigh], [%w_next, %weights]
  %total = phi {VECTOR} [zeroinitializer, %weigh], [%total_next, %weights]
  %at_w = getelementptr float, ptr %my_scores, i64 %w
  %raw = load {VECTOR}, ptr %at_w, align 4
  %below = fsub {VECTOR} %raw, %most
  %in_twos = fmul {VECTOR} %below, {_constant(math.log2(math.e) / math.sqrt(dim))}
  {_exp2("%in_twos")}
  store {VECTOR} %power, ptr %at_w, align 4
  %total_next = fadd {VECTOR} %total, %power
  %w_next = add i64 %w, {LANES}
  %more_weights = icmp ult i64 %w_next, %b
  br i1 %more_weights, label %weights, label %weighed
weighed:
  %all_weights = call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {VECTOR} %total_next)
  br label %value"""


def _mix(dim: int) -> str:
    """The values by their weights."""
    return f"""value:
  %i = phi i64 [0, %weighed], [%i_next, %value]
{_each(dim, f"%o# = phi {VECTOR} [zeroinitializer, %weighed], [%o_next#, %value]")}
  %at_p = getelementptr float, ptr %my_scores, i64 %i
  %p = load float, ptr %at_p, align 4
  {_splat("ps", "%p")}
  %i_offset = mul i64 %i, {dim}
  %v_i = getelementptr float, ptr %my_v, i64 %i_offset
{_each(dim, "%at_v# = getelementptr float, ptr %v_i, i64 $")}
{_each(dim, f"%v# = load {VECTOR}, ptr %at_v#, align 4")}
{_each(dim, f"%o_next# = {FMA}({VECTOR} %ps, {VECTOR} %v#, {VECTOR} %o#)")}
  %i_next = add i64 %i, 1
  %more_values = icmp ult i64 %i_next, %seen
  br i1 %more_values, label %value, label %mixed
mixed:
  %one_over = fdiv float 1.0, %all_weights
  {_splat("norm", "%one_over")}
{_each(dim, f"%y# = fmul {VECTOR} %o_next#, %norm")}
{_each(dim, "%at_out# = getelementptr float, ptr %my_out, i64 $")}
{_each(dim, f"store {VECTOR} %y#, ptr %at_out#, align 4")}
  br label %end_of_query"""
