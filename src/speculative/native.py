"""Functions in LLVM's language, compiled for this processor when first needed, and run on torch's own threads.

Two pools of threads on the same cores would wait for each other, so work is shared out by GOMP_parallel of the OpenMP
library that torch has loaded, and GOMP_barrier has threads wait for each other.
"""

import ctypes
import platform
from collections.abc import Callable
from functools import cache

import torch

VECTOR = "<16 x float>"  # what all code here computes with; LLVM splits it into the registers that there are
DECLARED = f"""
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
declare void @GOMP_barrier()
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare {VECTOR} @llvm.fma.v16f32({VECTOR}, {VECTOR}, {VECTOR})
declare <32 x float> @llvm.fma.v32f32(<32 x float>, <32 x float>, <32 x float>)
declare {VECTOR} @llvm.maximum.v16f32({VECTOR}, {VECTOR})
declare {VECTOR} @llvm.rint.v16f32({VECTOR})
declare {VECTOR} @llvm.fabs.v16f32({VECTOR})
declare float @llvm.sqrt.f32(float)
declare i64 @llvm.umin.i64(i64, i64)
declare float @llvm.vector.reduce.fmaximum.v16f32({VECTOR})
declare float @llvm.vector.reduce.fadd.v16f32(float, {VECTOR})
"""
# A thread's share [%first, %last) of %count pieces of work.
SHARE = """
  %me32 = call i32 @omp_get_thread_num()
  %all32 = call i32 @omp_get_num_threads()
  %me = zext i32 %me32 to i64
  %all = zext i32 %all32 to i64
  %begin = mul i64 %count, %me
  %end = add i64 %begin, %count
  %first = udiv i64 %begin, %all
  %last = udiv i64 %end, %all"""

_engines = []  # code lives as long as its engine


@cache
def available() -> bool:
    """Whether this processor fuses multiplication and addition, and torch's threads can be reached."""
    import llvmlite.binding as llvm

    try:
        found = all(hasattr(ctypes.CDLL(None), name) for name in ("GOMP_parallel", "GOMP_barrier"))
    except (OSError, TypeError):  # a system where a process has no table of all its functions
        return False
    has, needed = llvm.get_host_cpu_features(), ("avx2", "fma", "f16c")
    return found and (platform.machine() not in ("x86_64", "AMD64") or all(has.get(name) for name in needed))


def wide() -> bool:
    """Whether the processor has 32 registers of 16 float32, instead of fewer or shorter ones."""
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get("avx512f"))


def task(pointers: tuple[str, ...], numbers: tuple[str, ...]) -> tuple[type[ctypes.Structure], str]:
    """A structure of addresses and int64 numbers that every thread is given, and the lines that read it from %task."""
    fields = [(name, ctypes.c_void_p) for name in pointers] + [(name, ctypes.c_int64) for name in numbers]
    lines = "\n".join(
        f"  %at_{name} = getelementptr i64, ptr %task, i64 {i}\n"
        f"  %{name} = load {'ptr' if kind is ctypes.c_void_p else 'i64'}, ptr %at_{name}"
        for i, (name, kind) in enumerate(fields)
    )
    return type("Task", (ctypes.Structure,), {"_fields_": fields}), lines


def loop(i: str, first, last, body: str, step: int = 1, carry: tuple[tuple[str, str, str], ...] = ()) -> str:
    """Lines that run `body` for %i from first on while it is below last. carry: (name, type, value at first) of what
    goes from round to round: the body reads %name and makes %name_next; %name is the result."""
    carried = "\n".join(
        f"  %{name} = phi {kind} [{value}, %{i}_enter], [%{name}_next, %{i}_again]" for name, kind, value in carry
    )
    return f"""  br label %{i}_enter
{i}_enter:
  br label %{i}_test
{i}_test:
  %{i} = phi i64 [{first}, %{i}_enter], [%{i}_next, %{i}_again]
{carried}
  %{i}_more = icmp ult i64 %{i}, {last}
  br i1 %{i}_more, label %{i}_round, label %{i}_end
{i}_round:
{body}
  br label %{i}_again
{i}_again:
  %{i}_next = add i64 %{i}, {step}
  br label %{i}_test
{i}_end:"""


@cache
def compiled(text: str) -> Callable[[ctypes.Structure], None]:
    """What runs `define void @work(ptr %task)` of a text, once on each thread, with a task."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    library = ctypes.CDLL(None)
    for name in ("omp_get_thread_num", "omp_get_num_threads", "GOMP_barrier"):
        llvm.add_symbol(name, ctypes.cast(getattr(library, name), ctypes.c_void_p).value)
    module = llvm.parse_assembly(DECLARED + text)
    module.verify()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
    )
    _engines.append(llvm.create_mcjit_compiler(module, target))
    _engines[-1].finalize_object()
    work, parallel = ctypes.c_void_p(_engines[-1].get_function_address("work")), library.GOMP_parallel
    return lambda given: parallel(work, ctypes.byref(given), torch.get_num_threads(), 0)
