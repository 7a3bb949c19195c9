"""What all stage scripts share on the command line: errors in one sentence, and lines that say what is going on."""

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable

import typer

from src.speculative.errors import TinydraftError

# The spellings of allocators and of the operating system; torch raises plain RuntimeErrors on the CPU.
_MEMORY_SIGNS = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory")
_DISK_SIGNS = ("no space left on device", "disk quota exceeded")
_NO_MEMORY = (
    "the memory does not hold these models; allowed: a smaller pair in params.yaml, keys 'targets' and 'drafts', "
    "or a smaller 'dtype'"
)


def stage(command: Callable) -> typer.Typer:
    """The Typer application of a stage script, around its one command.

    What the project raises on purpose, Ctrl-C, a full disk and missing memory end in one sentence on stderr and a
    code that is not zero (1, and 130 for Ctrl-C). Any other exception is a fault of the code and shows its traceback.
    """

    @functools.wraps(command)
    def guarded(*args, **kwargs):
        # What ends a job sends SIGTERM; as an exception it lets temporary files be removed.
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            _end("interrupted; nothing half-done was kept, and the same command goes on from there", 130)
        except Exception as error:
            sentence = _sentence(error)
            if sentence is None:
                raise
            _end(sentence, 1)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    # Without the source's line breaks, so that help flows with the terminal's width.
    text = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    app.command(help=text)(guarded)
    return app


def say(text: str) -> None:
    """One line on stdout, at once, also where the output is a file."""
    print(text, flush=True)


def progress(items, label: str):
    """The items with a bar on a terminal, and no bar elsewhere."""
    from tqdm import tqdm

    return tqdm(items, desc=label, disable=None, leave=False, dynamic_ncols=True)


def _sentence(error: Exception) -> str | None:
    """What to tell a user of it, or None if it is a fault of the code."""
    if isinstance(error, TinydraftError):
        return str(error)
    # By their texts too: safetensors and torch wrap what the operating system said into types of their own.
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in _MEMORY_SIGNS):
        return _NO_MEMORY
    if getattr(error, "errno", None) == errno.ENOSPC or any(sign in text for sign in _DISK_SIGNS):
        return f"{getattr(error, 'filename', None) or 'the disk'}: no space is left; free some and run this again"
    return None


def _interrupt(*_) -> None:
    raise KeyboardInterrupt


def _end(sentence: str, code: int) -> None:
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    if code == 130:
        # Torch's threads may still hold the interpreter; everything to be kept is on disk already.
        os._exit(code)
    raise SystemExit(code)
