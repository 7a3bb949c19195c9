"""The matrix product of a few rows, made for what decoding asks of it and compiled for this processor by LLVM.

Libraries are made for large products. For a few rows they read weights at half of the memory's speed, and sum in
another order for one row than for five. This one has a single idea: the weights of 16 outputs lie side by side, as a
*panel*, and a panel is read once, front to back, for up to six rows at a time:

    column 0 of outputs 0..15, column 1 of outputs 0..15, ...        a panel, as it lies in memory
    for each column i:  s_r += x[r, i] * panel[i]                    s_r: 16 sums of row r, in registers

Every sum is taken in the order of the columns, by fused multiply-adds, whatever the number of rows or threads: so its
bits depend neither on them nor on the processor. Weights are widened to float32 where they are read; activations and
sums are float32. Quantized weights (`quantize.py`) come in groups of columns, which their scales and zeros precede.
"""

from collections.abc import Callable
from functools import cache

import torch

from .native import SHARE, VECTOR, compiled, task
from .quantize import Groups

LANES, ROWS = 16, 6  # outputs of a panel; rows whose sums fit into the sixteen vector registers of x86, with room
AHEAD = 2048  # bytes from what is read to what is asked for already
Task, FIELDS = task(("x", "weights", "out"), ("rows", "columns", "groups", "panels", "x_stride", "out_stride"))

BYTES = {"float32": 64, "float16": 32, "bfloat16": 32, "8 bits": 16, "4 bits": 8}  # of a panel's column
HEADS = {"8 bits": ("scale",), "4 bits": ("scale", "zero")}  # 16 numbers of float32 each, before a group's columns
READ = {  # 16 numbers of float32, %read, from what stands at %at
    "float32": ["%read = load <16 x float>, ptr %at, align 4"],
    "float16": ["%half = load <16 x half>, ptr %at, align 2", "%read = fpext <16 x half> %half to <16 x float>"],
    "bfloat16": [
        "%half = load <16 x i16>, ptr %at, align 2",
        "%wide = zext <16 x i16> %half to <16 x i32>",
        "%high = shl <16 x i32> %wide, splat (i32 16)",
        "%read = bitcast <16 x i32> %high to <16 x float>",
    ],
    "8 bits": [
        "%byte = load <16 x i8>, ptr %at, align 1",
        "%wide = sext <16 x i8> %byte to <16 x i32>",
        "%read = sitofp <16 x i32> %wide to <16 x float>",
    ],
    "4 bits": [  # outputs 0..7 in the low halves of eight bytes, 8..15 in the high ones
        "%byte = load <8 x i8>, ptr %at, align 1",
        "%wide = zext <8 x i8> %byte to <8 x i32>",
        "%low = and <8 x i32> %wide, splat (i32 15)",
        "%high = lshr <8 x i32> %wide, splat (i32 4)",
        "%first_half = sitofp <8 x i32> %low to <8 x float>",
        "%other_half = sitofp <8 x i32> %high to <8 x float>",
        "%read = shufflevector <8 x float> %first_half, <8 x float> %other_half, "
        f"<16 x i32> <{', '.join(f'i32 {i}' for i in range(LANES))}>",
    ],
}
FUSED = f"call {VECTOR} @llvm.fma.v16f32"


def pack(weight: torch.Tensor | Groups) -> Callable:
    """A function of x (rows, columns) float32, one row or more, -> x @ weight.T (rows, outputs) float32.

    weight: (outputs, columns) float32, float16 or bfloat16, or quantized; it is copied. `reads`: bytes of the copy.
    """
    quantized = isinstance(weight, Groups)
    fmt = f"{weight.bits} bits" if quantized else str(weight.dtype).removeprefix("torch.")
    outputs, columns = (weight.values if quantized else weight).shape
    groups = weight.scale.shape[1] if quantized else 1
    stored = _grouped(weight) if quantized else _panels(weight)
    padded = len(stored) * LANES
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
    return product


def _panels(values: torch.Tensor) -> torch.Tensor:
    """values (outputs, columns) as (panels, columns, 16), zeros where the last panel has room."""
    short = -len(values) % LANES
    padded = torch.cat((values, values.new_zeros(short, values.shape[1]))) if short else values
    return padded.view(-1, LANES, values.shape[1]).transpose(1, 2).contiguous()


def _grouped(weight: Groups) -> torch.Tensor:
    """Bytes (panels, groups * n): of each group its 16 scales, at 4 bits its 16 zeros, and its columns."""
    values, scale = _panels(weight.values), weight.scale.float()
    if weight.bits == 4:
        values = values[..., : LANES // 2] | values[..., LANES // 2 :] << 4
    heads = [scale] if weight.zero is None else [scale, weight.zero.float() - 8 * scale]
    parts = [_panels(head).view(torch.uint8) for head in heads]
    parts.append(values.view(torch.uint8).reshape(len(values), scale.shape[1], -1))
    return torch.cat(parts, -1).flatten(1)


@cache
def _text(fmt: str) -> str:
    return "\n".join([_share(fmt), *(_panel(fmt, rows) for rows in range(1, ROWS + 1))])


def _share(fmt: str) -> str:
    """In LLVM's language: a thread takes its share of the panels, and of each panel the rows in blocks of six."""
    blocks = "\n".join(
        f"rows{rows}:\n  call void @panel{rows}(ptr %x_block, i64 %x_stride, ptr %panel, ptr %out_block, "
        f"i64 %out_stride, i64 %columns, i64 %groups)\n  br label %next_block"
        for rows in range(1, ROWS + 1)
    )
    return f"""
define void @work(ptr %task) {{
entry:
{FIELDS}
  %column_bytes = mul i64 %columns, {BYTES[fmt]}
  %group_bytes = add i64 %column_bytes, {64 * len(HEADS.get(fmt, ()))}
  %panel_bytes = mul i64 %group_bytes, %groups
  %count = add i64 %panels, 0{SHARE}
  br i1 %any, label %one_panel, label %done
one_panel:
  %p = phi i64 [%first, %entry], [%p_next, %next_panel]
  %panel_offset = mul i64 %p, %panel_bytes
  %panel = getelementptr i8, ptr %weights, i64 %panel_offset
  %output = mul i64 %p, {LANES}
  %out_panel = getelementptr float, ptr %out, i64 %output
  br label %block
block:
  %r = phi i64 [0, %one_panel], [%r_next, %next_block]
  %x_offset = mul i64 %r, %x_stride
  %x_block = getelementptr float, ptr %x, i64 %x_offset
  %out_offset = mul i64 %r, %out_stride
  %out_block = getelementptr float, ptr %out_panel, i64 %out_offset
  %left = sub i64 %rows, %r
  switch i64 %left, label %rows{ROWS} [{" ".join(f"i64 {n}, label %rows{n}" for n in range(1, ROWS))}]
{blocks}
next_block:
  %r_next = add i64 %r, {ROWS}
  %more_rows = icmp ult i64 %r_next, %rows
  br i1 %more_rows, label %block, label %next_panel
next_panel:
  %p_next = add i64 %p, 1
  %more_panels = icmp ult i64 %p_next, %last
  br i1 %more_panels, label %one_panel, label %done
done:
  ret void
}}"""


def _panel(fmt: str, rows: int) -> str:
    """In LLVM's language: one panel times `rows` rows, into sums %s0, %s1, ..., group by group, column by column."""
    heads = HEADS.get(fmt, ())
    read, loads, factors, scaled = list(READ[fmt]), [], "%read", "%s_next#"
    for i, head in enumerate(heads):
        loads.append(f"%at_{head} = getelementptr i8, ptr %at_group, i64 {64 * i}")
        loads.append(f"%{head} = load {VECTOR}, ptr %at_{head}, align 4")
    if fmt == "4 bits":
        factors = "%weight"
        read.append(f"%weight = {FUSED}({VECTOR} %read, {VECTOR} %scale, {VECTOR} %zero)")
    if fmt == "8 bits":  # one group, so that its scales can wait until the end
        scaled = "%y#"

    def each(template: str) -> str:
        return "\n".join("  " + template.replace("#", str(row)) for row in range(rows))

    return f"""
define internal void @panel{rows}(ptr %x, i64 %x_stride, ptr %panel, ptr %out, i64 %out_stride, i64 %columns,
                                  i64 %groups) {{
entry:
  %column_bytes = mul i64 %columns, {BYTES[fmt]}
  %group_bytes = add i64 %column_bytes, {64 * len(heads)}
{each("%x_offset# = mul i64 %x_stride, #")}
{each("%x_row# = getelementptr float, ptr %x, i64 %x_offset#")}
{each("%out_offset# = mul i64 %out_stride, #")}
{each("%out_row# = getelementptr float, ptr %out, i64 %out_offset#")}
  br label %group
group:
  %g = phi i64 [0, %entry], [%g_next, %end_of_group]
{each(f"%t# = phi {VECTOR} [zeroinitializer, %entry], [%s_next#, %end_of_group]")}
  %group_offset = mul i64 %g, %group_bytes
  %at_group = getelementptr i8, ptr %panel, i64 %group_offset
  {chr(10).join(loads)}
  %at_columns = getelementptr i8, ptr %at_group, i64 {64 * len(heads)}
  %before = mul i64 %g, %columns
  br label %column
column:
  %i = phi i64 [0, %group], [%i_next, %column]
{each(f"%s# = phi {VECTOR} [%t#, %group], [%s_next#, %column]")}
  %offset = mul i64 %i, {BYTES[fmt]}
  %at = getelementptr i8, ptr %at_columns, i64 %offset
  %ahead = getelementptr i8, ptr %at, i64 {AHEAD}
  call void @llvm.prefetch.p0(ptr %ahead, i32 0, i32 3, i32 1)
  {chr(10).join(read)}
  %i_x = add i64 %before, %i
{each("%x_at# = getelementptr float, ptr %x_row#, i64 %i_x")}
{each("%x_one# = load float, ptr %x_at#, align 4")}
{each(f"%x_first# = insertelement {VECTOR} poison, float %x_one#, i64 0")}
{each(f"%x_all# = shufflevector {VECTOR} %x_first#, {VECTOR} poison, <16 x i32> zeroinitializer")}
{each(f"%s_next# = {FUSED}({VECTOR} %x_all#, {VECTOR} {factors}, {VECTOR} %s#)")}
  %i_next = add i64 %i, 1
  %more_columns = icmp ult i64 %i_next, %columns
  br i1 %more_columns, label %column, label %end_of_group
end_of_group:
  %g_next = add i64 %g, 1
  %more_groups = icmp ult i64 %g_next, %groups
  br i1 %more_groups, label %group, label %done
done:
{each(f"%y# = fmul {VECTOR} %s_next#, %scale") if fmt == "8 bits" else ""}
{each(f"store {VECTOR} {scaled}, ptr %out_row#, align 4")}
  ret void
}}"""
