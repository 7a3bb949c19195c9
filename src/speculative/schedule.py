"""How many tokens to propose: always k, or as many as are likely to be worth it.

A window may end early, and its length may depend on anything that was known when its last token was drawn, that token
and its probability included. What must not happen is that a token is drawn, disliked and dropped: then the tokens that
are proposed no longer follow q, and the output no longer follows the target. So an uncertain token ends the window and
stays in it.
"""

from .errors import SettingsError

SCHEDULES = ("fixed", "adaptive")
LEAST_CONFIDENCE = 0.4


class Fixed:
    """k tokens a window."""

    def __init__(self, k: int):
        self.limit = k

    def go_on(self, confidence: float) -> bool:
        """Whether to draw another token after one that the draft gave the probability `confidence`."""
        return True

    def settle(self, proposed: int, accepted: int) -> None:
        """Takes notice of how many tokens of a window were accepted."""


class Adaptive(Fixed):
    """At most k tokens: up to the first that the draft is not sure of, and fewer after windows that were rejected.

    The rule of transformers' assisted generation: a window ends with a token of a probability below 0.4; the limit
    falls by one after a rejection and rises by two after a window that was accepted whole. It starts at k, and belongs
    to one run.
    """

    def __init__(self, k: int):
        super().__init__(k)
        self.most = k

    def go_on(self, confidence: float) -> bool:
        return confidence >= LEAST_CONFIDENCE

    def settle(self, proposed: int, accepted: int) -> None:
        if accepted < proposed:
            self.limit = max(1, self.limit - 1)
        elif proposed:
            self.limit = min(self.most, self.limit + 2)


def make_schedule(name: str, k: int) -> Fixed:
    """A schedule by its name, new for each run. Raises SettingsError if there is none of that name."""
    if name not in SCHEDULES:
        raise SettingsError(f"schedule must be one of {', '.join(SCHEDULES)}, not {name!r}")
    return (Fixed if name == "fixed" else Adaptive)(k)
