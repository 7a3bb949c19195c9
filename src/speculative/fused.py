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

from .native import SHARE, VECTOR, available, compiled, loop, task

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


def number(value: float) -> str:
    """A float32 in LLVM's notation."""
    exact = torch.tensor(value, dtype=torch.float32).double().item()
    return f"0x{torch.tensor(exact, dtype=torch.float64).view(torch.int64).item() & (2**64 - 1):016X}"


def constant(value: float) -> str:
    """16 times a number, in LLVM's notation of float32."""
    return f"splat (float {number(value)})"


def exp2(of: str) -> str:
    """Lines that make %power of vector `of`, no entry of which is above 0; 2^-126 below -126, NaN of NaN."""
    series = [math.log(2) ** i / math.factorial(i) for i in range(8)]
    lines = [
        f"%bounded = call {VECTOR} @llvm.maximum.v16f32({VECTOR} {of}, {VECTOR} {constant(-126.0)})",
        f"%whole = call {VECTOR} @llvm.rint.v16f32({VECTOR} %bounded)",
        f"%rest = fsub {VECTOR} %bounded, %whole",
    ]
    before = constant(series[7])
    for i in reversed(range(7)):
        lines.append(f"%series{i} = {FMA}({VECTOR} {before}, {VECTOR} %rest, {VECTOR} {constant(series[i])})")
        before = f"%series{i}"
    lines += [
        f"%exponent = fptosi {VECTOR} %whole to <16 x i32>",
        "%biased = add <16 x i32> %exponent, splat (i32 127)",
        "%shifted = shl <16 x i32> %biased, splat (i32 23)",
        f"%factor = bitcast <16 x i32> %shifted to {VECTOR}",
        f"%power = fmul {VECTOR} %series0, %factor",
    ]
    return "\n  ".join(lines)


def splat(name: str, scalar: str, kind: str = "float") -> str:
    """Lines that make %name of 16 times a scalar."""
    vector = f"<16 x {kind}>"
    return (
        f"%{name}_0 = insertelement {vector} poison, {kind} {scalar}, i64 0\n"
        f"  %{name} = shufflevector {vector} %{name}_0, {vector} poison, <16 x i32> zeroinitializer"
    )


def _each(dim: int, template: str) -> str:
    """A line for each vector of a head: # is its number, $ its first dimension."""
    vectors = range(dim // LANES)
    return "\n".join("  " + template.replace("#", str(i)).replace("$", str(i * LANES)) for i in vectors)


ARGUMENTS = (
    "ptr %q, ptr %k, ptr %v, ptr %out, ptr %scores, i64 %heads, i64 %shared, i64 %start, i64 %q_stride, "
    "i64 %k_stride, i64 %v_stride, i64 %room, i64 %first, i64 %last"
)


@cache
def _text(dim: int) -> str:
    """In LLVM's language: a thread takes its share of the n * heads queries."""
    return f"""{queries(dim)}
define void @work(ptr %task) {{
{FIELDS}{SHARE}
  call void @queries({ARGUMENTS})
  ret void
}}"""


def queries(dim: int) -> str:
    """In LLVM's language, for heads of `dim` numbers: @queries, which does those from %first up to %last."""
    return f"""
define internal void @queries({ARGUMENTS}) {{
entry:
  %any = icmp ult i64 %first, %last
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
    """q . k_j of the %seen keys, 16 at a time, -inf up to the next multiple of 16, %ends, and the %larger of all.

    In the last sixteen the last key takes the place of those beyond it, so that nothing beyond it is read.
    """
    whole = f"""{_sixteen_scores(dim, "a", lambda key: f"add i64 %j, {key}")}
  %at_score = getelementptr float, ptr %my_scores, i64 %j
  store {VECTOR} %a, ptr %at_score, align 4
  %largest_next = call {VECTOR} @llvm.maximum.v16f32({VECTOR} %largest, {VECTOR} %a)"""
    last = f"""  %last_key = sub i64 %seen, 1
{chr(10).join(f"  %place{key} = add i64 %before_last, {key}" for key in range(LANES))}
{_sixteen_scores(dim, "b", lambda key: f"call i64 @llvm.umin.i64(i64 %place{key}, i64 %last_key)")}
  {splat("seen_all", "%seen", "i64")}
  {splat("before_all", "%before_last", "i64")}
  %places = add <16 x i64> %before_all, <{", ".join(f"i64 {i}" for i in range(LANES))}>
  %is_seen = icmp ult <16 x i64> %places, %seen_all
  %scored = select <16 x i1> %is_seen, {VECTOR} %b, {VECTOR} {constant(-math.inf)}
  %at_last = getelementptr float, ptr %my_scores, i64 %before_last
  store {VECTOR} %scored, ptr %at_last, align 4
  %largest_of_all = call {VECTOR} @llvm.maximum.v16f32({VECTOR} %largest, {VECTOR} %scored)"""
    return f"""{_each(dim, "%at_q# = getelementptr float, ptr %my_q, i64 $")}
{_each(dim, f"%q# = load {VECTOR}, ptr %at_q#, align 4")}
  %before_last = and i64 %seen_before, {-LANES}
  %ends = add i64 %before_last, {LANES}
{loop("j", 0, "%before_last", whole, LANES, (("largest", VECTOR, constant(-math.inf)),))}
{last}
  %larger = call float @llvm.vector.reduce.fmaximum.v16f32({VECTOR} %largest_of_all)
  br label %weigh"""


def _sixteen_scores(dim: int, name: str, place: Callable[[int], str]) -> str:
    """Lines that make vector %name of q . k of 16 keys: the key of each, by its number, is at what `place` makes."""
    lines = []
    for key in range(LANES):
        lines += [
            f"%{name}_j{key} = {place(key)}",
            f"%{name}_offset{key} = mul i64 %{name}_j{key}, {dim}",
            f"%{name}_row{key} = getelementptr float, ptr %my_k, i64 %{name}_offset{key}",
        ]
        for i in range(dim // LANES):
            at, k, dot = (f"%{name}_{part}{key}_{i}" for part in ("at", "k", "dot"))
            before = f"%{name}_dot{key}_{i - 1}"
            lines += [
                f"{at} = getelementptr float, ptr %{name}_row{key}, i64 {i * LANES}",
                f"{k} = load {VECTOR}, ptr {at}, align 4",
                f"{dot} = {FMA}({VECTOR} %q{i}, {VECTOR} {k}, {VECTOR} {before})"
                if i
                else f"{dot} = fmul {VECTOR} %q0, {k}",
            ]
    sums = [f"%{name}_dot{key}_{dim // LANES - 1}" for key in range(LANES)]
    while len(sums) > 1:  # halves of the sums of two keys are added, until each has one number of a vector
        width = len(sums) // 2
        low = [i for i in range(2 * LANES) if i // width % 2 == 0]
        pairs, sums = list(zip(sums[::2], sums[1::2], strict=True)), []
        for pair, (one, other) in enumerate(pairs):
            made = f"%{name}_half{width}_{pair}" if width > 1 else f"%{name}"
            for part, of in (("low", low), ("high", [i + width for i in low])):
                mask = ", ".join(f"i32 {i}" for i in of)
                lines.append(f"{made}_{part} = shufflevector {VECTOR} {one}, {VECTOR} {other}, <16 x i32> <{mask}>")
            lines.append(f"{made} = fadd {VECTOR} {made}_low, {made}_high")
            sums.append(made)
    return "\n".join("  " + line for line in lines)


def _weights(dim: int) -> str:
    """exp((score - largest) / sqrt(d)) in place of each score, and the sum, %all_weights."""
    return f"""weigh:
  {splat("most", "%larger")}
  br label %weights
weights:
  %w = phi i64 [0, %weigh], [%w_next, %weights]
  %total = phi {VECTOR} [zeroinitializer, %weigh], [%total_next, %weights]
  %at_w = getelementptr float, ptr %my_scores, i64 %w
  %raw = load {VECTOR}, ptr %at_w, align 4
  %below = fsub {VECTOR} %raw, %most
  %in_twos = fmul {VECTOR} %below, {constant(math.log2(math.e) / math.sqrt(dim))}
  {exp2("%in_twos")}
  store {VECTOR} %power, ptr %at_w, align 4
  %total_next = fadd {VECTOR} %total, %power
  %w_next = add i64 %w, {LANES}
  %more_weights = icmp ult i64 %w_next, %ends
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
  {splat("ps", "%p")}
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
  {splat("norm", "%one_over")}
{_each(dim, f"%y# = fmul {VECTOR} %o_next#, %norm")}
{_each(dim, "%at_out# = getelementptr float, ptr %my_out, i64 $")}
{_each(dim, f"store {VECTOR} %y#, ptr %at_out#, align 4")}
  br label %end_of_query"""
