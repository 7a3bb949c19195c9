"""What ends a stage badly is one sentence on stderr and a code; only a fault of the code shows its traceback."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from src.pipeline.console import stage
from src.speculative.errors import DownloadError

ROOT = Path(__file__).parent.parent


def full_disk():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/table.md")


def huge_tensor():
    import torch

    torch.empty(2**60, dtype=torch.int8)


def full_safetensors():
    from safetensors import SafetensorError

    # What it raises on a full disk.
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def on_purpose():
    raise DownloadError("pip: a sentence\n  over two lines")


def no_memory():
    raise MemoryError


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (on_purpose, "error: pip: a sentence over two lines"),
        (full_disk, "results/table.md: no space is left; free some and run this again"),
        (full_safetensors, "no space is left; free some and run this again"),
        (no_memory, "the memory does not hold these models; allowed: a smaller pair"),
        (huge_tensor, "the memory does not hold these models; allowed: a smaller pair"),
    ],
)
def test_one_sentence_for_what_a_user_can_mend(what, said):
    """The last refusal is the allocator's own."""
    result = CliRunner().invoke(stage(what), [])
    assert result.exit_code == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_fault_of_the_code_is_not_dressed_up():
    def broken():
        return {}["missing"]

    result = CliRunner().invoke(stage(broken), [])
    assert result.exit_code != 0
    assert isinstance(result.exception, KeyError)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_stage_says_how_to_go_on_and_leaves_nothing(tmp_path, how):
    program = (
        # A shell starts what runs in the background with Ctrl-C ignored.
        "import signal, time\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from src.pipeline.console import say, stage\nfrom src.pipeline.files import new_directory\n"
        "def wait():\n    with new_directory('model') as new:\n        (new / 'half').write_text('x')\n"
        "        say('begun')\n        time.sleep(60)\nstage(wait)()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True, stdout=-1, stderr=-1
    ) as process:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.05)
        process.send_signal(how)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == "error: interrupted; nothing half-done was kept, and the same command goes on from there\n"
    assert not list(tmp_path.iterdir())
