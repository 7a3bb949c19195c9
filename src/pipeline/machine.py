"""Stage `machine`: check params.yaml and the prompts, and say which machine this is.

It runs every time, within a second, and writes the same bytes as long as nothing that a timing depends on changed.
"""

import os
import platform
import re
import secrets
import subprocess
from importlib.metadata import version
from pathlib import Path

from src.pipeline.console import say, stage
from src.pipeline.files import write_json, write_text
from src.pipeline.params import Params, load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import MACHINE, Machine

IDENTITY = Path(".machine-id")


def fingerprint(params: Params) -> dict[str, str | int]:
    """What a timing depends on besides code and params; stable from run to run, without load or time.

    The id is random and kept in a file that git ignores, so that a clone measures for itself: two machines of one
    type are alike in everything else here.
    """
    import psutil

    return {
        "id": _identity(),
        "processor": _processor(),
        "accelerator": _accelerator(params.device),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "threads": params.threads,
    }


def _identity() -> str:
    known = IDENTITY.read_text(encoding="utf-8", errors="replace").strip() if IDENTITY.exists() else ""
    if not re.fullmatch(r"[0-9a-f]{8}", known):
        known = secrets.token_hex(4)
        write_text(IDENTITY, known + "\n")
    return known


def _processor() -> str:
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.processor()
    return platform.processor() or platform.machine()


def _accelerator(device: str) -> str:
    """The GPU's name, without torch: this stage runs even when nothing is to be done, so it must be quick."""
    if not device.startswith("cuda"):
        return "none" if device == "cpu" else device
    index = device.partition(":")[2] or "0"
    return _output(["nvidia-smi", f"--id={index}", "--query-gpu=name", "--format=csv,noheader"]) or device


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine() -> None:
    """Check params.yaml and the prompt set, and write the machine's fingerprint to results/machine.json.

    Timings depend on the fingerprint: processor, cores, memory, versions, threads, and a random id of this clone.
    It holds no time and no load, so while it stays the same nothing is measured again.
    """
    params = load_params()
    load_prompts(params.prompts)
    shown = fingerprint(params)
    write_json(MACHINE, Machine(fingerprint=shown))
    say(f"{shown['processor']}, {shown['cores']} cores, {shown['memory_gib']} GiB; torch {shown['torch']}")


app = stage(machine)

if __name__ == "__main__":
    app()
