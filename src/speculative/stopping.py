"""Where an output ends: at a token that ends answers, or where a stop string is complete.

A window may run past the end. What lies behind it is dropped, so that the output is plain decoding's: the first token
with which the condition holds is the last one.
"""

from collections.abc import Sequence

from .errors import SettingsError
from .text import Pieces


def check_strings(stop: str | Sequence[str], tok) -> tuple[str, ...]:
    """The stop strings as a tuple. Raises SettingsError for an empty one, or if there is no tokenizer to read them."""
    if not isinstance(stop, str | list | tuple):
        raise SettingsError(f"stop must be a string or a list of strings, not {stop!r}")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for string in strings:
        if not isinstance(string, str) or not string:
            raise SettingsError(f"stop must be a string or several, none of them empty, not {string!r}")
    if strings and tok is None:
        raise SettingsError("stop needs the tokenizer, for strings are looked for in the text; tok must not be None")
    return strings


class Stop:
    """Watches one output grow. eos_ids: tokens that end it. strings: texts that end it, wherever token borders lie."""

    def __init__(self, eos_ids: Sequence[int] = (), strings: Sequence[str] = (), tok=None):
        self.eos_ids, self.strings = frozenset(eos_ids), tuple(strings)
        self._pieces = Pieces(tok, special=True) if strings else None
        self._reach = max(map(len, strings), default=1) - 1
        self._tail = ""

    def look(self, new: list[int]) -> tuple[int, str]:
        """How many of the next tokens belong to the output, and why it ends with them: "eos", "stop", or "" if not."""
        for i, token in enumerate(new):
            if token in self.eos_ids:
                return i + 1, "eos"
            if self.strings and self._completes(token):
                return i + 1, "stop"
        return len(new), ""

    def _completes(self, token: int) -> bool:
        text = self._tail + self._pieces.push(token)
        # An unfinished character may follow a string that is complete.
        seen = text + self._pieces.pending
        self._tail = text[max(0, len(text) - self._reach) :]
        return any(string in seen for string in self.strings)
