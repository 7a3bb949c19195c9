"""How much memory a piece of work needed at its peak, beyond what was there before it."""

import ctypes
import gc
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_growth(work) -> int | None:
    """Bytes by which this process's resident memory rose at most while work() ran; None where Linux is not there."""
    _give_back()
    try:
        CLEAR.write_text("5")  # forgets the peak so far
        before = _status("VmRSS")
    except OSError:
        return None
    work()
    return max(0, _status("VmHWM") - before)


def _give_back() -> None:
    """Memory that was freed and kept for the next allocation goes back to the system, or it would hide that one."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name + ":"))
    return 1024 * int(line.split()[1])
