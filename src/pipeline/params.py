"""The schema of `params.yaml`: what may be set, checked before anything runs.

DVC reads the same file (as YAML 1.2) and tracks its keys; it accepts an empty or doubled `ks` and any unknown key
in silence, so every stage reads the file through `load_params`, and the first stage does nothing else of note.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError

from src.distill.settings import DistillParams
from src.pipeline.sources import Source, Strict
from src.speculative.errors import TinydraftError

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]*")


COLDEST = 1e-5  # of temperatures above 0: logits divided by less leave the range of float32


class ParamsError(TinydraftError):
    """A params.yaml or prompt set that cannot be used; says file, key, what is wrong and what is allowed."""


class CheckParams(Strict):
    """The float32 check of losslessness, and what still counts as a near tie in the sweep's dtype."""

    prompts: int = Field(ge=1, description="how many prompts of the set, a whole number from 1")
    max_new_tokens: int = Field(ge=1, description="a whole number from 1")
    near_tie: float = Field(ge=0, allow_inf_nan=False, description="a logit difference, 0 or more")


class SamplingParams(Strict):
    """The second sweep, of verification rules and drafters, and the trace that replays them without a model."""

    temperature: float = Field(ge=COLDEST, allow_inf_nan=False, description="a number from 1e-5")
    k: int = Field(ge=1, le=16, description="a whole number from 1 to 16")
    prompts: int = Field(ge=1, description="how many prompts of the set, a whole number from 1")
    max_new_tokens: int = Field(ge=1, description="a whole number from 1")

    def heat(self, settings):
        """Params, or the settings of a results file, as the second sweep and the trace have them."""
        return settings.model_copy(update={"temperature": self.temperature, "max_new_tokens": self.max_new_tokens})


class Params(Strict):
    """All of `params.yaml`; the file itself says what each key means."""

    targets: list[str] = Field(min_length=1, description="a list of different names from the catalogue `models`")
    drafts: list[str] = Field(min_length=1, description="a list of different names from the catalogue `models`")
    ks: list[Annotated[int, Field(ge=1)]] = Field(
        min_length=1, description="a list of different whole numbers from 1, such as [1, 2, 4]"
    )
    device: str = Field(pattern=r"^(cpu|mps|cuda(:\d+)?)$", description="cpu, mps, cuda or cuda:N")
    dtype: Literal["float32", "bfloat16", "float16"] = Field(description="float32, bfloat16 or float16")
    threads: int = Field(ge=1, le=1024, description="a whole number from 1 to 1024")
    exact: bool = Field(description="true or false")
    compile: bool = Field(description="true or false")
    seed: int = Field(ge=0, lt=2**63, description="a whole number from 0")
    prompts: str = Field(pattern=r"\.jsonl$", description="a file of one JSON object a line, named *.jsonl")
    chat: bool = Field(description="true or false")
    max_new_tokens: int = Field(ge=1, description="a whole number from 1")
    ignore_eos: bool = Field(description="true or false")
    temperature: float = Field(ge=0, allow_inf_nan=False, description="a number from 0 (0 is greedy)")
    top_k: int = Field(ge=0, description="a whole number from 0 (0 is off)")
    top_p: float = Field(gt=0, le=1, allow_inf_nan=False, description="above 0 and up to 1 (1 is off)")
    min_p: float = Field(ge=0, lt=1, allow_inf_nan=False, description="from 0 (off) to below 1")
    verification: Literal["token", "block", "match"] = Field(description="token, block or match")
    drafter: Literal["model", "prompt-lookup"] = Field(description="model or prompt-lookup")
    schedule: Literal["fixed", "adaptive"] = Field(description="fixed or adaptive")
    sampling: SamplingParams = Field(description="a mapping with temperature, k, prompts and max_new_tokens")
    repeats: int = Field(ge=1, description="a whole number from 1")
    warmup: int = Field(ge=0, description="a whole number from 0")
    check: CheckParams = Field(description="a mapping with prompts, max_new_tokens and near_tie")
    models: dict[str, Source] = Field(description="a mapping from names to sources")
    distill: DistillParams

    @model_validator(mode="after")
    def _relations(self):
        if 0 < self.temperature < COLDEST:
            raise ValueError(f"key 'temperature': {self.temperature} cannot be used; allowed: 0 (greedy), or from 1e-5")
        for slug, entry in self.models.items():
            if not SLUG.fullmatch(slug):
                raise ValueError(
                    f"key 'models': the name {slug!r} cannot be used; allowed: lower-case letters, digits, - and _, "
                    "without dots or slashes (DVC reads a dot as a path)"
                )
            self._check_of(slug, entry)
        for key, allowed in (("targets", "models"), ("drafts", "models"), ("ks", None)):
            values = getattr(self, key)
            twice = next((v for v in values if values.count(v) > 1), None)
            if twice is not None:
                raise ValueError(f"key '{key}': {twice!r} stands there twice; allowed: each value once")
            unknown = next((v for v in values if allowed and v not in self.models), None)
            if unknown is not None:
                raise ValueError(
                    f"key '{key}': {unknown!r} is not in the catalogue `models`; allowed: {', '.join(self.models)}"
                )
        both = next((slug for slug in self.targets if slug in self.drafts), None)
        if both:
            raise ValueError(f"key 'drafts': {both!r} is a target too; allowed: names that `targets` does not hold")
        return self

    def _check_of(self, slug: str, entry: Source) -> None:
        seen = [slug]
        while (of := getattr(entry, "of", None)) is not None:
            if of not in self.models or of in seen:
                why = "comes back to itself" if of in seen else f"{of!r} is not in the catalogue `models`"
                others = ", ".join(name for name in self.models if name not in seen)
                raise ValueError(f"key 'models.{slug}.of': {why}; allowed: {others}")
            seen.append(of)
            entry = self.models[of]


def load_params(path: str | Path = "params.yaml") -> Params:
    """Read and check all of `path`.

    Raises ParamsError, in one sentence that names file, key, what is wrong and what is allowed.
    """
    path = Path(path)
    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path}: there is no such file; run this at the root of the repository") from None
    except DuplicateKeyError as error:
        key = re.search(r'duplicate key "?([^"\s]+)', str(error))
        raise ParamsError(f"{path}: key '{key[1] if key else '?'}' stands there twice; allowed: once") from None
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ParamsError(f"{path}: not valid YAML 1.2{_place(error)}; allowed: a mapping of keys to values") from None
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read ({error.strerror})") from None
    return check_params(data, path)


def demand_known(params: Params, key: str, slug: str) -> None:
    """Raises ParamsError, naming what is allowed, unless `slug` stands under `key`: targets, drafts or models."""
    if slug not in getattr(params, key):
        raise ParamsError(f"params.yaml: key '{key}': holds no {slug!r}; allowed: {', '.join(getattr(params, key))}")


def check_params(data: Any, path: str | Path = "params.yaml") -> Params:
    """The checked form of what was read; raises ParamsError like `load_params`."""
    if not isinstance(data, dict):
        raise ParamsError(f"{path}: holds no mapping; allowed: the keys {', '.join(Params.model_fields)}")
    try:
        return Params.model_validate(data)
    except ValidationError as error:
        first, more = error.errors()[0], error.error_count() - 1
        also = f" (and {more} more like it)" if more else ""
        raise ParamsError(f"{path}: {_sentence(first, data)}{also}") from None


def _place(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _sentence(error: dict, data: dict) -> str:
    """One pydantic error as: key 'a.b': what is wrong; allowed: what is."""
    if error["type"] == "value_error" and not error["loc"]:
        return str(error["ctx"]["error"])
    keys, fields = _walk(error["loc"], data)
    key = f"key '{'.'.join(keys)}'"
    if error["type"] == "missing":
        return f"{key} is missing; allowed: {_allowed(fields, keys)}"
    if error["type"] == "extra_forbidden":
        return f"{key} is unknown; allowed: {', '.join(fields)}"
    if error["type"].startswith("union_tag"):
        return f"{key}: it needs a known `source`; allowed: pypi, hub, path, distill, quantize"
    got = error["input"]
    shown = f"a {type(got).__name__}" if isinstance(got, dict | list) and got else repr(got)
    return f"{key}: {shown} cannot be used; allowed: {_allowed(fields, keys)}"


def _walk(loc: tuple, data: Any) -> tuple[list[str], dict]:
    """The keys as they stand in the file (pydantic adds union tags), and the fields of the innermost model."""
    keys, fields = [], Params.model_fields
    kinds = {"check": CheckParams, "distill": DistillParams, "sampling": SamplingParams}
    tags = {kind.model_fields["source"].annotation.__args__[0]: kind for kind in Source.__origin__.__args__}
    for depth, part in enumerate(loc):
        if part == "[key]":
            continue
        if depth == 2 and loc[0] == "models" and part in tags:
            fields = tags[part].model_fields
            continue
        keys.append(str(part))
        if depth < len(loc) - 1 and part in kinds:
            fields = kinds[part].model_fields
    return keys, fields


def _allowed(fields: dict, keys: list[str]) -> str:
    field = next((fields[key] for key in reversed(keys) if key in fields), None)
    return (field and field.description) or "see the comment beside the key"
