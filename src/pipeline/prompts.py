"""Prompt sets: one JSON object a line, {"id", "category", "prompt"}."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from src.pipeline.params import ParamsError

ALLOWED = 'allowed: one JSON object a line with the keys "id", "category" and "prompt", each a non-empty text'


@dataclass(frozen=True)
class Prompt:
    """One prompt of a set."""

    id: str
    category: str
    prompt: str


def load_prompts(path: str | Path) -> list[Prompt]:
    """The prompts of a file in its order.

    Raises ParamsError, in one sentence with file and line, for a missing or empty set, a line that is not such an
    object, a missing or doubled id, and an empty prompt.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # some editors begin a file with a mark
    except FileNotFoundError:
        raise ParamsError(
            f"params.yaml: key 'prompts': {str(path)!r} does not exist; allowed: a file of prompts"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: cannot be read as UTF-8 text ({error}); {ALLOWED}") from None
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse(line, f"{path}: line {number}")
        if any(prompt.id == other.id for other in prompts):
            raise ParamsError(f"{path}: line {number}: key 'id': {prompt.id!r} stands there twice; allowed: once")
        prompts.append(prompt)
    if not prompts:
        raise ParamsError(f"{path}: holds no prompt; {ALLOWED}")
    return prompts


def digest(prompts: list[Prompt]) -> str:
    """A short SHA-256 of the prompts, to tell whether two results are about the same ones."""
    rows = json.dumps([[p.id, p.category, p.prompt] for p in prompts], ensure_ascii=False)
    return hashlib.sha256(rows.encode()).hexdigest()[:16]


def _parse(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except ValueError:
        raise ParamsError(f"{where}: not JSON; {ALLOWED}") from None
    if not isinstance(row, dict):
        raise ParamsError(f"{where}: not a JSON object; {ALLOWED}")
    for key in ("id", "category", "prompt"):
        if key not in row:
            raise ParamsError(f"{where}: key {key!r} is missing; {ALLOWED}")
        if not isinstance(row[key], str) or not row[key].strip():
            raise ParamsError(f"{where}: key {key!r}: {row[key]!r} cannot be used; {ALLOWED}")
        if any("\ud800" <= char <= "\udfff" for char in row[key]):
            raise ParamsError(f"{where}: key {key!r}: holds half of a surrogate pair, which is no character; {ALLOWED}")
    unknown = next((key for key in row if key not in ("id", "category", "prompt")), None)
    if unknown:
        raise ParamsError(f"{where}: key {unknown!r} is unknown; {ALLOWED}")
    return Prompt(row["id"], row["category"], row["prompt"])
