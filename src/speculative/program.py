"""All layers of a pass as one compiled program, which torch's threads run through together.

Between a layer's matrix products there is little to compute, but asking for each of twenty small operations from
Python takes as long as half of the products. Here a thread takes its share of each step below, and waits for the
others after it. A norm is so short that every thread makes its own:

    into attention   y = norm(x);  its panels of q, k, v = y @ w_qkv
    turn             its heads of q in place, of k into the cache; its heads of v into the cache
    attend           its queries
    out of attention its panels of x += mixed @ w_o
    into the MLP     y = norm(x);  its panels of gate and up = y @ w_gate_up, then silu(gate) * up
    out of the MLP   its panels of x += that @ w_down

Everything is float32, and each number of a row is computed in one order whatever rows and threads there are.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from . import panels
from .fused import constant, exp2, fits, number, queries, splat
from .native import SHARE, VECTOR, compiled, loop, task

STEP = 16  # numbers of a vector
FMA = f"call {VECTOR} @llvm.fma.v16f32"
Task, FIELDS = task(
    ("x", "qkv", "mixed", "y", "act", "scores", "normed", "cos", "sin", "layers"),
    ("rows", "start", "k_stride", "room", "layer_count"),
)
LAYER = (
    "before", "qkv", "qkv_bias", "q_norm", "k_norm", "cache", "o", "o_bias", "between", "gate_up", "gate_up_bias",
    "down", "down_bias",
)  # fmt: skip


class Product(NamedTuple):
    """What the code knows of one of a layer's products: format, columns of a group, groups, panels, bias or not."""

    fmt: str
    columns: int
    groups: int
    panels: int
    biased: bool

    @property
    def outputs(self) -> int:
        return self.panels * panels.lanes_of(self.fmt)


class Shape(NamedTuple):
    """What the code knows of a model."""

    hidden: int
    units: int
    heads: int
    kv_heads: int
    dim: int
    eps: float
    normed_heads: bool
    qkv: Product
    o: Product
    gate_up: Product
    down: Product

    @property
    def width(self) -> int:
        """Numbers of a row's q, k and v."""
        return (self.heads + 2 * self.kv_heads) * self.dim


def program(network, shape: Shape) -> Callable:
    """A function of x (rows, hidden) float32 and the first row's position, which has x go through the layers in place,
    over the caches that the network has now. It returns x."""
    run, table = compiled(_text(shape)), _table(network)
    turns = torch.view_as_real(network._turns).flatten(1, 2)  # (positions, d / 2, 2)
    cos = turns[..., :1].expand(turns.shape).flatten(1).contiguous()
    sin = torch.stack((-turns[..., 1], turns[..., 1]), -1).flatten(1).contiguous()
    given = Task(
        layers=table.data_ptr(), cos=cos.data_ptr(), sin=sin.data_ptr(), layer_count=len(table),
        k_stride=network.capacity * shape.dim,
    )  # fmt: skip
    kept = table, cos, sin

    def through(x: torch.Tensor, start: int) -> torch.Tensor:
        rows, room = len(x), -(-(start + len(x)) // STEP) * STEP
        sizes = {
            "qkv": shape.width, "mixed": shape.heads * shape.dim, "y": max(shape.hidden, 2 * shape.units),
            "act": shape.units, "scores": shape.heads * room, "normed": torch.get_num_threads() * shape.hidden,
        }  # fmt: skip
        scratch = torch.empty(rows * sum(sizes.values()), dtype=torch.float32)
        at = scratch.data_ptr()
        for name, size in sizes.items():
            setattr(given, name, at)
            at += 4 * rows * size
        given.x, given.rows, given.start, given.room = x.data_ptr(), rows, start, room
        run(given)
        return x

    through.kept = kept
    return through


def shape_of(network) -> Shape | None:
    """The shape of a `Llama`, or None where a part of it is not in panels of whole vectors: no program runs that."""
    if network.product != "panels" or not fits(network.head_dim, network.device, network.dtype):
        return None
    found = {_layer_shape(network, layer) for layer in network.layers}
    return found.pop() if len(found) == 1 else None


def _layer_shape(network, layer: dict) -> Shape | None:
    made = {}
    for name in ("qkv", "o", "gate_up", "down"):
        of = layer[name].panels
        biased = layer[name].bias is not None
        made[name] = Product(of.fmt, of.given.columns, of.given.groups, of.given.panels, biased)
    config = network.config
    shape = Shape(
        config.hidden_size, config.intermediate_size, network.heads, network.kv_heads, network.head_dim, network.eps,
        "q_norm" in layer, **made,
    )  # fmt: skip
    lanes = panels.lanes_of(shape.gate_up.fmt)
    wanted = shape.width, shape.hidden, 2 * shape.units, shape.hidden
    whole = all(product.outputs == size for product, size in zip(made.values(), wanted, strict=True))
    return shape if whole and shape.units % lanes == 0 else None


def _table(network) -> torch.Tensor:
    """Addresses, int64 (layers, fields of `LAYER`), 0 for what a layer has not."""
    rows = []
    for layer, held in zip(network.layers, network._cache, strict=True):
        row = {"cache": held.data_ptr()}
        for name in ("qkv", "o", "gate_up", "down"):
            row[name] = layer[name].panels.given.weights
            row[f"{name}_bias"] = 0 if layer[name].bias is None else layer[name].bias.data_ptr()
        for name in ("before", "between", "q_norm", "k_norm"):
            row[name] = layer[name].weight.data_ptr() if name in layer else 0
        rows.append([row[name] for name in LAYER])
    return torch.tensor(rows, dtype=torch.int64)


@cache
def _text(shape: Shape) -> str:
    formats = {product.fmt for product in (shape.qkv, shape.o, shape.gate_up, shape.down)}
    steps = [
        _into(shape, "into_attention", "before", "qkv", "%qkv", ""),
        _turn(shape),
        _attend(shape),
        _out(shape, "out_of_attention", "o", "%mixed"),
        _into(shape, "into_mlp", "between", "gate_up", "%y", _silu(shape)),
        _out(shape, "out_of_mlp", "down", "%act"),
    ]
    names = ("into_attention", "turn", "attend", "out_of_attention", "into_mlp", "out_of_mlp")
    calls = "\n".join(f"  call void @{name}(ptr %task, ptr %layer)\n  call void @GOMP_barrier()" for name in names)
    every_layer = f"""  %offset = mul i64 %l, {len(LAYER)}
  %layer = getelementptr i64, ptr %layers, i64 %offset
{calls}"""
    return "\n".join([
        *(panels.products(fmt) for fmt in sorted(formats)), queries(shape.dim), _norm(shape.hidden, shape.eps),
        _add(), *steps,
        f"define void @work(ptr %task) {{\n{FIELDS}\n{loop('l', 0, '%layer_count', every_layer)}\n  ret void\n}}",
    ])  # fmt: skip


def _step(name: str, count: str, body: str) -> str:
    """A function that takes this thread's share, %first to %last, of so many pieces of a layer's work."""
    fields = "\n".join(
        f"  %at_layer_{field} = getelementptr i64, ptr %layer, i64 {i}\n"
        f"  %layer_{field} = load ptr, ptr %at_layer_{field}"
        for i, field in enumerate(LAYER)
    )
    return f"""
define internal void @{name}(ptr %task, ptr %layer) {{
{FIELDS}
{fields}
  %count = mul i64 {count}{SHARE}
{body}
  ret void
}}"""


def _call(product: Product, x: str, weights: str, out: str, first: str, last: str) -> str:
    """Lines that multiply the rows of x with the panels from first up to last, into out."""
    return (
        f"  call void @{panels.name(product.fmt)}(ptr {x}, ptr {weights}, ptr {out}, i64 %rows, "
        f"i64 {product.columns}, i64 {product.groups}, i64 {product.columns * product.groups}, "
        f"i64 {product.outputs}, i64 {first}, i64 {last})"
    )


def _numbers(product: Product, first: str, last: str, names: tuple[str, str]) -> str:
    """Lines that make the first and the last output of panels."""
    lanes = panels.lanes_of(product.fmt)
    return f"  %{names[0]} = mul i64 {first}, {lanes}\n  %{names[1]} = mul i64 {last}, {lanes}"


def _into(shape: Shape, step: str, norm: str, name: str, out: str, after: str) -> str:
    """y = norm(x), then products of y in `parts` equal parts, of each of which a thread has the same panels."""
    product: Product = getattr(shape, name)
    parts = 2 if after else 1
    half = product.panels // parts
    lines = [
        f"""  %room_offset = mul i64 %rows, {shape.hidden}
  %my_offset = mul i64 %room_offset, %me
  %normed_x = getelementptr float, ptr %normed, i64 %my_offset
  call void @norm(ptr %x, ptr %layer_{norm}, ptr %normed_x, i64 %rows)"""
    ]
    for part in range(parts):
        lines.append(f"  %first{part} = add i64 %first, {part * half}\n  %last{part} = add i64 %last, {part * half}")
        lines.append(_call(product, "%normed_x", f"%layer_{name}", out, f"%first{part}", f"%last{part}"))
        if product.biased:
            lines.append(_numbers(product, f"%first{part}", f"%last{part}", (f"from{part}", f"to{part}")))
            lines.append(
                f"  call void @add(ptr {out}, ptr %layer_{name}_bias, i64 {product.outputs}, i64 0, i64 %rows, "
                f"i64 %from{part}, i64 %to{part})"
            )
    return _step(step, f"1, {half}", "\n".join([*lines, after]))


def _out(shape: Shape, step: str, name: str, of: str) -> str:
    """x += of @ weights."""
    product: Product = getattr(shape, name)
    lines = [
        _call(product, of, f"%layer_{name}", "%y", "%first", "%last"),
        _numbers(product, "%first", "%last", ("from", "to")),
    ]
    if product.biased:
        lines.append(
            f"  call void @add(ptr %y, ptr %layer_{name}_bias, i64 {shape.hidden}, i64 0, i64 %rows, i64 %from, "
            "i64 %to)"
        )
    lines.append(
        f"  call void @add(ptr %x, ptr %y, i64 {shape.hidden}, i64 {shape.hidden}, i64 %rows, i64 %from, i64 %to)"
    )
    return _step(step, f"1, {product.panels}", "\n".join(lines))


def _add() -> str:
    """To each row's numbers from %from up to %to those of another's are added; of the same one if its stride is 0."""
    one = f"""  %at = getelementptr float, ptr %row, i64 %i
  %added_at = getelementptr float, ptr %added_row, i64 %i
  %one = load {VECTOR}, ptr %at, align 4
  %other = load {VECTOR}, ptr %added_at, align 4
  %sum = fadd {VECTOR} %one, %other
  store {VECTOR} %sum, ptr %at, align 4"""
    row = f"""  %offset = mul i64 %r, %stride
  %added_offset = mul i64 %r, %added_stride
  %row = getelementptr float, ptr %to_rows, i64 %offset
  %added_row = getelementptr float, ptr %added, i64 %added_offset
{loop("i", "%from", "%to", one, STEP)}"""
    return f"""
define internal void @add(ptr %to_rows, ptr %added, i64 %stride, i64 %added_stride, i64 %rows, i64 %from, i64 %to) {{
{loop("r", 0, "%rows", row)}
  ret void
}}"""


def _inverse(size: int, eps: float, squares: str) -> str:
    """Lines that make %inverse, 16 times 1 / sqrt(sum of a vector of squares / size + eps)."""
    return f"""  %sum = call reassoc float @llvm.vector.reduce.fadd.v16f32(float -0.0, {VECTOR} {squares})
  %mean = fdiv float %sum, {float(size):.1f}
  %more_than_0 = fadd float %mean, {number(eps)}
  %root = call float @llvm.sqrt.f32(float %more_than_0)
  %one_over = fdiv float 1.0, %root
  {splat("inverse", "%one_over")}"""


def _norm(size: int, eps: float) -> str:
    """RMS normalization of each row (Zhang & Sennrich 2019, arXiv 1910.07467)."""
    squares = f"""  %at = getelementptr float, ptr %row, i64 %i
  %number = load {VECTOR}, ptr %at, align 4
  %squares_next = {FMA}({VECTOR} %number, {VECTOR} %number, {VECTOR} %squares)"""
    scaled = f"""  %at_x = getelementptr float, ptr %row, i64 %j
  %at_w = getelementptr float, ptr %weight, i64 %j
  %at_out = getelementptr float, ptr %out_row, i64 %j
  %old = load {VECTOR}, ptr %at_x, align 4
  %w = load {VECTOR}, ptr %at_w, align 4
  %unit = fmul {VECTOR} %old, %inverse
  %new = fmul {VECTOR} %unit, %w
  store {VECTOR} %new, ptr %at_out, align 4"""
    row = f"""  %offset = mul i64 %r, {size}
  %row = getelementptr float, ptr %x, i64 %offset
  %out_row = getelementptr float, ptr %out, i64 %offset
{loop("i", 0, size, squares, STEP, (("squares", VECTOR, "zeroinitializer"),))}
{_inverse(size, eps, "%squares")}
{loop("j", 0, size, scaled, STEP)}"""
    return f"""
define internal void @norm(ptr %x, ptr %weight, ptr %out, i64 %rows) {{
{loop("r", 0, "%rows", row)}
  ret void
}}"""


def _turn(shape: Shape) -> str:
    """A piece is a head of a row: of q, turned in place; of k, turned into the cache; of v, copied into the cache."""
    each = shape.heads + 2 * shape.kv_heads
    squares = f"""  %at_s = getelementptr float, ptr %from, i64 %i
  %number = load {VECTOR}, ptr %at_s, align 4
  %squares_next = {FMA}({VECTOR} %number, {VECTOR} %number, {VECTOR} %squares)"""
    norm, scale, plain = "", "", "%old"
    if shape.normed_heads:
        norm = f"""  %norm_weight = select i1 %is_q, ptr %layer_q_norm, ptr %layer_k_norm
{loop("i", 0, shape.dim, squares, STEP, (("squares", VECTOR, "zeroinitializer"),))}
{_inverse(shape.dim, shape.eps, "%squares")}"""
        plain = "%plain"
        scale = f"""  %at_w = getelementptr float, ptr %norm_weight, i64 %j
  %w = load {VECTOR}, ptr %at_w, align 4
  %unit = fmul {VECTOR} %old, %inverse
  %plain = fmul {VECTOR} %unit, %w"""
    pairs = ", ".join(f"i32 {i ^ 1}" for i in range(STEP))
    turned = f"""  %at_old = getelementptr float, ptr %from, i64 %j
  %at_new = getelementptr float, ptr %to, i64 %j
  %cos_at = getelementptr float, ptr %my_cos, i64 %j
  %sin_at = getelementptr float, ptr %my_sin, i64 %j
  %old = load {VECTOR}, ptr %at_old, align 4
{scale}
  %c = load {VECTOR}, ptr %cos_at, align 4
  %s = load {VECTOR}, ptr %sin_at, align 4
  %other = shufflevector {VECTOR} {plain}, {VECTOR} poison, <{STEP} x i32> <{pairs}>
  %part = fmul {VECTOR} %other, %s
  %new = {FMA}({VECTOR} {plain}, {VECTOR} %c, {VECTOR} %part)
  store {VECTOR} %new, ptr %at_new, align 4"""
    copied = f"""  %at_v = getelementptr float, ptr %from, i64 %m
  %at_kept = getelementptr float, ptr %to, i64 %m
  %value = load {VECTOR}, ptr %at_v, align 4
  store {VECTOR} %value, ptr %at_kept, align 4"""
    piece = f"""  %row = udiv i64 %piece, {each}
  %head = urem i64 %piece, {each}
  %from_offset = mul i64 %piece, {shape.dim}
  %from = getelementptr float, ptr %qkv, i64 %from_offset
  %place = add i64 %start, %row
  %turn_offset = mul i64 %place, {shape.dim}
  %my_cos = getelementptr float, ptr %cos, i64 %turn_offset
  %my_sin = getelementptr float, ptr %sin, i64 %turn_offset
  %cache_head = sub i64 %head, {shape.heads}
  %cache_row = mul i64 %cache_head, %k_stride
  %cache_offset = add i64 %cache_row, %turn_offset
  %cached = getelementptr float, ptr %layer_cache, i64 %cache_offset
  %is_q = icmp ult i64 %head, {shape.heads}
  %to = select i1 %is_q, ptr %from, ptr %cached
  %is_v = icmp uge i64 %head, {shape.heads + shape.kv_heads}
  br i1 %is_v, label %copy, label %turn
turn:
{norm}
{loop("j", 0, shape.dim, turned, STEP)}
  br label %placed
copy:
{loop("m", 0, shape.dim, copied, STEP)}
  br label %placed
placed:"""
    return _step("turn", f"%rows, {each}", loop("piece", "%first", "%last", piece))


def _attend(shape: Shape) -> str:
    return _step(
        "attend",
        f"%rows, {shape.heads}",
        f"""  %v_offset = mul i64 %k_stride, {shape.kv_heads}
  %v = getelementptr float, ptr %layer_cache, i64 %v_offset
  call void @queries(ptr %qkv, ptr %layer_cache, ptr %v, ptr %mixed, ptr %scores, i64 {shape.heads},
                     i64 {shape.heads // shape.kv_heads}, i64 %start, i64 {shape.width}, i64 %k_stride,
                     i64 %k_stride, i64 %room, i64 %first, i64 %last)""",
    )


def _silu(shape: Shape) -> str:
    """silu(gate) * up of the same outputs: gate / (1 + exp(-gate)), with the exponential of what is not above 0."""
    one = f"""  %at_gate = getelementptr float, ptr %gates, i64 %i
  %at_up = getelementptr float, ptr %ups, i64 %i
  %act_at = getelementptr float, ptr %acts, i64 %i
  %gate = load {VECTOR}, ptr %at_gate, align 4
  %up = load {VECTOR}, ptr %at_up, align 4
  %size = call {VECTOR} @llvm.fabs.v16f32({VECTOR} %gate)
  %in_twos = fmul {VECTOR} %size, {constant(-math.log2(math.e))}
  {exp2("%in_twos")}
  %one_more = fadd {VECTOR} %power, {constant(1.0)}
  %positive = fcmp oge {VECTOR} %gate, zeroinitializer
  %above = select <{STEP} x i1> %positive, {VECTOR} {constant(1.0)}, {VECTOR} %power
  %sigmoid = fdiv {VECTOR} %above, %one_more
  %silu = fmul {VECTOR} %gate, %sigmoid
  %active = fmul {VECTOR} %silu, %up
  store {VECTOR} %active, ptr %act_at, align 4"""
    row = f"""  %y_offset = mul i64 %r, {2 * shape.units}
  %act_offset = mul i64 %r, {shape.units}
  %gates = getelementptr float, ptr %y, i64 %y_offset
  %ups = getelementptr float, ptr %gates, i64 {shape.units}
  %acts = getelementptr float, ptr %act, i64 %act_offset
{loop("i", "%from", "%to", one, STEP)}"""
    return f"""{_numbers(shape.gate_up, "%first", "%last", ("from", "to"))}
{loop("r", 0, "%rows", row)}"""
