"""Speculative decoding: a draft proposes, the target verifies, and the output is the target's own.

>>> from src.speculative import generate, load_models
>>> target, draft, tok = load_models()
>>> tokens, stats = generate(target, draft, tok, "Why is LLM decoding memory-bound?", k=4)
"""

from importlib import import_module
from typing import TYPE_CHECKING

from .errors import DownloadError, ModelError, PromptError, SettingsError, TinydraftError

if TYPE_CHECKING:
    from .decoding import generate
    from .loading import load_models
    from .prompt_lookup import PromptLookup
    from .sampling import Sampling
    from .stats import Stats
    from .streaming import stream
    from .vocabulary import reconcile

__all__ = [
    "DownloadError",
    "ModelError",
    "PromptError",
    "PromptLookup",
    "Sampling",
    "SettingsError",
    "Stats",
    "TinydraftError",
    "generate",
    "load_models",
    "reconcile",
    "stream",
]

_HOMES = {
    "PromptLookup": "prompt_lookup",
    "Sampling": "sampling",
    "Stats": "stats",
    "generate": "decoding",
    "load_models": "loading",
    "reconcile": "vocabulary",
    "stream": "streaming",
}


def __getattr__(name: str):
    """Loads what needs torch when it is first asked for: a command's --help has no use for two seconds of imports."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    """So that help() shows what is loaded when it is first asked for."""
    return __all__
