"""The matrix product of a few rows, made for what decoding asks of it and compiled for this processor by LLVM.

Libraries are made for large products. For a few rows they read weights at half of the memory's speed, and sum in
another order for one row than for five. This one has a single idea: the weights of a few outputs lie side by side, as
a *panel*, and a panel is read once, front to back, for several rows at a time:

    column 0 of outputs 0..15, column 1 of outputs 0..15, ...        a panel, as it lies in memory
    for each column i:  s_r += x[r, i] * panel[i]                    s_r: the sums of row r, in registers

Every sum is taken in the order of the columns, by fused multiply-adds, whatever the number of rows or threads: so its
bits depend neither on them nor on the processor. Activations and sums are float32, and weights are widened to it where
they are read. For that, those of several columns lie in the 32 bits of their output: two of bfloat16, eight of 4 bits.
Such columns are a *bundle*. Quantized weights (`quantize.py`) come in groups of columns, after their scales and zeros.
"""

from collections.abc import Callable
from functools import cache

import torch

from .native import SHARE, compiled, task, wide
from .quantize import Groups

SUMS = 96  # that the sixteen registers of 8 numbers hold, with room for weights; twice as wide, there are 32 of them
AHEAD = 8192  # bytes from what is read to what is asked for already
Task, FIELDS = task(("x", "weights", "out"), ("rows", "columns", "groups", "panels", "x_stride", "out_stride"))

# Of each format: columns of a bundle, its bytes for an output, and the cache that is read ahead into, the second (2)
# or, where widening takes longer than reading, the first (3).
BUNDLE = {"float32": 1, "float16": 1, "bfloat16": 2, "8 bits": 1, "4 bits": 8}
BYTES = {"float32": 4, "float16": 2, "bfloat16": 4, "8 bits": 1, "4 bits": 4}
CACHE = {"float32": 2, "float16": 2, "bfloat16": 2, "8 bits": 3, "4 bits": 3}
HEADS = {"8 bits": ("scale",), "4 bits": ("scale", "zero")}  # a float32 for each output, before a group's columns
LINE = 64  # bytes that memory gives at once


def lanes_of(fmt: str) -> int:
    """Outputs of a panel. A sum waits for the one before it: where reading is quick, more of them fill that time."""
    return 32 if fmt in HEADS and wide() else 16


def pack(weight: torch.Tensor | Groups) -> Callable:
    """A function of x (rows, columns) float32, one row or more, -> x @ weight.T (rows, outputs) float32.

    weight: (outputs, columns) float32, float16 or bfloat16, or quantized; it is copied. `reads`: bytes of the copy.
    """
    quantized = isinstance(weight, Groups)
    outputs, columns = (weight.values if quantized else weight).shape
    if not quantized and columns % 2 and weight.dtype == torch.bfloat16:
        weight = weight.float()  # the last column would lack the other half of its bundle
    fmt = f"{weight.bits} bits" if quantized else str(weight.dtype).removeprefix("torch.")
    groups = weight.scale.shape[1] if quantized else 1
    stored = _grouped(weight, fmt) if quantized else _bundled(_panels(weight, lanes_of(fmt)), BUNDLE[fmt])
    padded = len(stored) * lanes_of(fmt)
    run = compiled(_text(fmt))
    given = Task(
        weights=stored.data_ptr(), columns=columns // groups, groups=groups, panels=len(stored), x_stride=columns,
        out_stride=padded,
    )  # fmt: skip

    def product(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(len(x), padded, dtype=torch.float32)
        given.x, given.out, given.rows = x.data_ptr(), out.data_ptr(), len(x)
        run(given)
        return out if padded == outputs else out[:, :outputs].contiguous()

    product.stored, product.reads = stored, stored.nbytes  # what is given has no more than its address
    product.fmt, product.given = fmt, given
    return product


def _panels(values: torch.Tensor, lanes: int) -> torch.Tensor:
    """values (outputs, columns) as (panels, columns, lanes), zeros where the last panel has room."""
    short = -len(values) % lanes
    padded = torch.cat((values, values.new_zeros(short, values.shape[1]))) if short else values
    return padded.view(-1, lanes, values.shape[1]).transpose(1, 2).contiguous()


def _bundled(panels: torch.Tensor, columns: int) -> torch.Tensor:
    """panels (panels, columns, lanes) in bundles of so many columns, (panels, bundles, lanes, columns of a bundle)."""
    return panels.unflatten(1, (-1, columns)).transpose(2, 3).contiguous()


def _grouped(weight: Groups, fmt: str) -> torch.Tensor:
    """Bytes (panels, groups * n): of each group its scales, at 4 bits its zeros, and its columns."""
    values, scale = _bundled(_panels(weight.values, lanes_of(fmt)), BUNDLE[fmt]), weight.scale.float()
    heads = [scale]
    if weight.bits == 4:
        values = values[..., 0::2] | values[..., 1::2] << 4
        heads = [16 * scale, weight.zero.float() - 24 * scale]  # 1 + value / 16 is what is read, see `_weight`
    parts = [_panels(head, lanes_of(fmt)).view(torch.uint8) for head in heads]
    parts.append(values.view(torch.uint8).reshape(len(values), scale.shape[1], -1))
    return torch.cat(parts, -1).flatten(1)


ARGUMENTS = (
    "ptr %x, ptr %weights, ptr %out, i64 %rows, i64 %columns, i64 %groups, i64 %x_stride, i64 %out_stride, "
    "i64 %first, i64 %last"
)


@cache
def _text(fmt: str) -> str:
    """In LLVM's language: a thread takes its share of the panels."""
    return f"""{products(fmt)}
define void @work(ptr %task) {{
{FIELDS}
  %count = add i64 %panels, 0{SHARE}
  call void @{name(fmt)}({ARGUMENTS})
  ret void
}}"""


def name(fmt: str) -> str:
    """Of a format's product in LLVM's language."""
    return "product_" + fmt.replace(" ", "_")


def products(fmt: str) -> str:
    """In LLVM's language: the product with the panels from %first up to %last, and what it needs."""
    most = SUMS * (2 if wide() else 1) // lanes_of(fmt)
    blocks = "\n".join(
        f"rows{rows}:\n  call void @{name(fmt)}{rows}(ptr %x_block, i64 %x_stride, ptr %panel, ptr %out_block, "
        f"i64 %out_stride, i64 %columns, i64 %groups)\n  br label %next_block"
        for rows in range(1, most + 1)
    )
    each_number = "\n".join(_panel(fmt, rows) for rows in range(1, most + 1))
    return f"""{each_number}
define internal void @{name(fmt)}({ARGUMENTS}) {{
entry:
{_sizes(fmt)}
  %panel_bytes = mul i64 %group_bytes, %groups
  %any = icmp ult i64 %first, %last
  br i1 %any, label %one_panel, label %done
one_panel:
  %p = phi i64 [%first, %entry], [%p_next, %next_panel]
  %panel_offset = mul i64 %p, %panel_bytes
  %panel = getelementptr i8, ptr %weights, i64 %panel_offset
  %output = mul i64 %p, {lanes_of(fmt)}
  %out_panel = getelementptr float, ptr %out, i64 %output
  br label %block
block:
  %r = phi i64 [0, %one_panel], [%r_next, %next_block]
  %x_offset = mul i64 %r, %x_stride
  %x_block = getelementptr float, ptr %x, i64 %x_offset
  %out_offset = mul i64 %r, %out_stride
  %out_block = getelementptr float, ptr %out_panel, i64 %out_offset
  %left = sub i64 %rows, %r
  switch i64 %left, label %rows{most} [{" ".join(f"i64 {n}, label %rows{n}" for n in range(1, most))}]
{blocks}
next_block:
  %r_next = add i64 %r, {most}
  %more_rows = icmp ult i64 %r_next, %rows
  br i1 %more_rows, label %block, label %next_panel
next_panel:
  %p_next = add i64 %p, 1
  %more_panels = icmp ult i64 %p_next, %last
  br i1 %more_panels, label %one_panel, label %done
done:
  ret void
}}"""


def _sizes(fmt: str) -> str:
    """Lines that make the number of a group's bundles, and the bytes of a group and of its bundles."""
    return f"""  %bundles = udiv i64 %columns, {BUNDLE[fmt]}
  %bundle_bytes = mul i64 %bundles, {BYTES[fmt] * lanes_of(fmt)}
  %group_bytes = add i64 %bundle_bytes, {4 * lanes_of(fmt) * len(HEADS.get(fmt, ()))}"""


def _panel(fmt: str, rows: int) -> str:
    """In LLVM's language: one panel times `rows` rows, into sums %s0, %s1, ..., group by group, column by column."""
    lanes, bundle, heads = lanes_of(fmt), BUNDLE[fmt], HEADS.get(fmt, ())
    floats = f"<{lanes} x float>"
    loads = []
    for i, head in enumerate(heads):
        loads.append(f"  %at_{head} = getelementptr i8, ptr %at_group, i64 {4 * lanes * i}")
        loads.append(f"  %{head} = load {floats}, ptr %at_{head}, align 4")

    def each(template: str) -> str:
        return "\n".join("  " + template.replace("#", str(row)) for row in range(rows))

    scaled = f"fmul {floats} %s#_{bundle}, %scale"  # 8 bits are in one group, so that its scales can wait until now
    return f"""
define internal void @{name(fmt)}{rows}(ptr %x, i64 %x_stride, ptr %panel, ptr %out, i64 %out_stride,
                                        i64 %columns, i64 %groups) {{
entry:
{_sizes(fmt)}
{each("%x_offset# = mul i64 %x_stride, #")}
{each("%x_row# = getelementptr float, ptr %x, i64 %x_offset#")}
{each("%out_offset# = mul i64 %out_stride, #")}
{each("%out_row# = getelementptr float, ptr %out, i64 %out_offset#")}
  br label %group
group:
  %g = phi i64 [0, %entry], [%g_next, %end_of_group]
{each(f"%t# = phi {floats} [zeroinitializer, %entry], [%s#_{bundle}, %end_of_group]")}
  %group_offset = mul i64 %g, %group_bytes
  %at_group = getelementptr i8, ptr %panel, i64 %group_offset
{chr(10).join(loads)}
  %at_bundles = getelementptr i8, ptr %at_group, i64 {4 * lanes * len(heads)}
  %before = mul i64 %g, %columns
  br label %one_bundle
one_bundle:
  %b = phi i64 [0, %group], [%b_next, %one_bundle]
{each(f"%s#_0 = phi {floats} [%t#, %group], [%s#_{bundle}, %one_bundle]")}
  %offset = mul i64 %b, {BYTES[fmt] * lanes}
  %at = getelementptr i8, ptr %at_bundles, i64 %offset
{_ahead(fmt)}
  %b_column = mul i64 %b, {bundle}
  %first = add i64 %before, %b_column
{each("%x_first# = getelementptr float, ptr %x_row#, i64 %first")}
{_columns(fmt, each)}
  %b_next = add i64 %b, 1
  %more_bundles = icmp ult i64 %b_next, %bundles
  br i1 %more_bundles, label %one_bundle, label %end_of_group
end_of_group:
  %g_next = add i64 %g, 1
  %more_groups = icmp ult i64 %g_next, %groups
  br i1 %more_groups, label %group, label %done
done:
{each(f"%y# = {scaled}") if fmt == "8 bits" else ""}
{each(f"store {floats} {'%y#' if fmt == '8 bits' else f'%s#_{bundle}'}, ptr %out_row#, align 4")}
  ret void
}}"""


def _ahead(fmt: str) -> str:
    """Lines that ask for what will be read, once for each line of memory in a bundle."""
    return "\n".join(
        f"  %ahead{i} = getelementptr i8, ptr %at, i64 {AHEAD + i}\n"
        f"  call void @llvm.prefetch.p0(ptr %ahead{i}, i32 0, i32 {CACHE[fmt]}, i32 1)"
        for i in range(0, BYTES[fmt] * lanes_of(fmt), LINE)
    )


def _columns(fmt: str, each: Callable[[str], str]) -> str:
    """Lines that add each column of the bundle at %at to the sums of each row."""
    lanes = lanes_of(fmt)
    floats, fma = f"<{lanes} x float>", f"call <{lanes} x float> @llvm.fma.v{lanes}f32"
    parts = [_bundle(fmt)]
    for c in range(BUNDLE[fmt]):
        parts += [
            _weight(fmt, c),
            each(f"%x_at{c}_# = getelementptr float, ptr %x_first#, i64 {c}"),
            each(f"%x_one{c}_# = load float, ptr %x_at{c}_#, align 4"),
            each(f"%x_some{c}_# = insertelement {floats} poison, float %x_one{c}_#, i64 0"),
            each(
                f"%x_all{c}_# = shufflevector {floats} %x_some{c}_#, {floats} poison, <{lanes} x i32> zeroinitializer"
            ),
            each(f"%s#_{c + 1} = {fma}({floats} %x_all{c}_#, {floats} %weight{c}, {floats} %s#_{c})"),
        ]
    return "\n".join(parts)


def _bundle(fmt: str) -> str:
    """Lines that read the bundle at %at: into %weight0 if it is one column, else into the 32 bits of each output."""
    lanes = lanes_of(fmt)
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    lines = {
        "float32": [f"%weight0 = load {floats}, ptr %at, align 4"],
        "float16": [
            f"%half = load <{lanes} x half>, ptr %at, align 2",
            f"%weight0 = fpext <{lanes} x half> %half to {floats}",
        ],
        "8 bits": [
            f"%byte = load <{lanes} x i8>, ptr %at, align 1",
            f"%number = sext <{lanes} x i8> %byte to {ints}",
            f"%weight0 = sitofp {ints} %number to {floats}",
        ],
    }.get(fmt, [f"%bundle = load {ints}, ptr %at, align 4"])
    return "\n".join("  " + line for line in lines)


def _weight(fmt: str, c: int) -> str:
    """Lines that make %weight of column c of a bundle of several."""
    lanes = lanes_of(fmt)
    floats, ints = f"<{lanes} x float>", f"<{lanes} x i32>"
    lines = []
    if fmt == "bfloat16":  # the upper half of a float32
        how = "shl {} %bundle, splat (i32 16)" if c == 0 else "and {} %bundle, splat (i32 -65536)"
        lines = [f"%bits{c} = {how.format(ints)}", f"%weight{c} = bitcast {ints} %bits{c} to {floats}"]
    if fmt == "4 bits":  # put where a float's fraction begins they are 1 + value / 16, without a conversion
        left = 19 - 4 * c
        lines = [
            f"%moved{c} = {'shl' if left > 0 else 'lshr'} {ints} %bundle, splat (i32 {abs(left)})",
            f"%fraction{c} = and {ints} %moved{c}, splat (i32 {15 << 19})",
            f"%bits{c} = or {ints} %fraction{c}, splat (i32 {127 << 23})",
            f"%read{c} = bitcast {ints} %bits{c} to {floats}",
            f"%weight{c} = call {floats} @llvm.fma.v{lanes}f32({floats} %read{c}, {floats} %scale, {floats} %zero)",
        ]
    return "\n".join("  " + line for line in lines)
