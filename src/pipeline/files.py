"""Reading and writing results: whole files or none, JSON with sorted keys and without NaN."""

import errno
import json
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from src.speculative.errors import TinydraftError

Result = TypeVar("Result", bound="Record")


class ResultError(TinydraftError):
    """A result that cannot be read or written; says which file, and how to make it anew."""


class Record(BaseModel):
    """Base of everything that is stored; unknown keys, NaN and infinities are errors."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    schema_: int = Field(1, alias="schema")


def write_text(path: str | Path, text: str) -> None:
    """Put `text` at `path` whole: written beside it, flushed to disk, then renamed over it.

    Raises ResultError when the disk is full or the place cannot be written to; nothing is left behind then.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultError(_disk_sentence(path, error)) from None


def write_json(path: str | Path, record: BaseModel) -> None:
    """Store a record: keys sorted, two spaces, lists of numbers on one line; raises like `write_text`."""
    data = record.model_dump(mode="json", by_alias=True)
    write_text(path, _layout(json.loads(json.dumps(data, allow_nan=False))) + "\n")


def read_json(path: str | Path, kind: type[Result]) -> Result:
    """The stored record at `path`; ResultError when it is missing, no JSON or of another schema."""
    path = Path(path)
    again = "make it anew with `dvc repro`"
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ResultError(f"{path}: there is no such result; {again}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the whole file"
        raise ResultError(f"{path}: {key}: {first['msg'].lower()}; {again}") from None
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror}); {again}") from None


@contextmanager
def new_directory(path: str | Path):
    """A temporary directory beside `path` that takes its place when the block ends well, and vanishes otherwise.

    Raises ResultError when the disk is full or the place cannot be written to; an older directory at `path` stays
    until the new one is whole.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise ResultError(_disk_sentence(path, error)) from None
    try:
        yield temporary
        for file in temporary.rglob("*"):
            os.chmod(file, 0o755 if file.is_dir() else 0o644)
        os.chmod(temporary, 0o755)
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise ResultError(_disk_sentence(path, error)) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _disk_sentence(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"{path}: no space is left on the disk, so it was not written; free some and run `dvc repro` again"
    return f"{path}: cannot be written ({error.strerror})"


def _layout(value, indent: str = "") -> str:
    """JSON with a line per key, and a line per list of plain values: short diffs, and samples that fit a screen."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(key)}: {_layout(value[key], inner)}" for key in sorted(value)]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        rows = [inner + _layout(item, inner) for item in value]
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
