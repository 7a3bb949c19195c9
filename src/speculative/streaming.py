"""Text as it is decoded."""

from collections.abc import Generator
from contextlib import closing

import torch

from .decoding import start
from .stats import Stats
from .text import Pieces


def stream(target, draft, tok, prompt, **arguments) -> Generator[str, None, tuple[torch.Tensor, Stats]]:
    """Yields the text that `generate` with the same arguments would give, piece by piece, as its steps end.

    No piece is broken inside a character. All together are tok.decode(tokens, skip_special_tokens=True). The
    generator's value (`tokens, stats = yield from stream(...)`) is what `generate` returns. It may be left at any time;
    both models can then be used at once. Raises like `generate`, when the first piece is asked for.
    """
    steps, stats = start(target, draft, tok, prompt, **arguments)
    pieces, tokens = Pieces(tok, special=False), []
    # Closed here and now, so that caches are in order when whoever left early goes on.
    with closing(steps):
        for new in steps:
            tokens += new
            if text := "".join(map(pieces.push, new)):
                yield text
        if text := pieces.rest():
            yield text
    return torch.tensor(tokens, dtype=torch.int64), stats
