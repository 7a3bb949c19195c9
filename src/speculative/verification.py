"""How many proposals the target accepts, and which token comes next: three rules, all exact in distribution.

Proposals x_1..x_k were drawn from q_1..q_k; one target pass gave p_1..p_{k+1}. Each rule returns (accepted,
next): x_1..x_accepted and then `next` are the new tokens, and they follow the target's law whatever q was.

token   Accept x_i with probability min(1, p_i(x_i) / q_i(x_i)), from left to right. At the first rejection
        the next token is drawn from the residual max(p_i - q_i, 0), normalized: what p has and the accepted
        proposals do not yet cover. Everything accepted: the bonus token from p_{k+1}. Leviathan et al. 2023
        (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318).
block   The proposals are judged together. With r_0 = 1 and r_i = min(1, r_{i-1} p_i(x_i) / q_i(x_i)), a
        likely token makes up for an unlikely one before it. One draw for every position i, with probability
            h_k = r_k;  h_i = m_i / (m_i + 1 - r_i) for i < k, m_i the mass of max(r_i p_{i+1} - q_{i+1}, 0);
        the *largest* i that succeeds counts, whatever became of the smaller ones (h_0 is 1), and the next
        token comes from its max(...), normalized, or from p_{k+1} if i = k. No rule accepts more tokens in
        expectation. Sun et al. 2024 (arXiv 2403.10444), algorithm 2.
match   Sample from p_1; as long as the sample is what the draft proposed, go on to p_2, and so on. Wasteful,
        since it accepts with probability sum p q rather than sum min(p, q), but one uniform is used for every
        token that comes out, in order: for a seed the output is plain decoding's, whatever the draft and k.

With one-hot p, as in greedy decoding, all three accept x_i as long as it is the argmax.
"""

from collections.abc import Sequence

import numpy as np

from .coins import Coins
from .errors import SettingsError

RULES = ("token", "block", "match")


def verify(
    rule: str, p: Sequence[np.ndarray], q: Sequence[np.ndarray] | None, proposals: list[int], coins: Coins
) -> tuple[int, int]:
    """The number of accepted proposals and the token after them, by the given rule.

    p: k + 1 rows (V,), float, each looked at only if it is needed; q: k rows (V',), or None if each proposal is certain
    (greedy draft, prompt lookup); proposals: k ids below V. V' may differ from V: an id that one of them lacks has
    probability 0 there. A proposal whose own q is not above 0 (NaN) ends the window before it: it was not drawn from q,
    so nothing is known of its law, and going on from p alone is exact. Raises SettingsError if there is no such rule.
    """
    if rule not in RULES:
        raise SettingsError(f"verification must be one of {', '.join(RULES)}, not {rule!r}")
    if rule == "match":
        return _verify_match(p, proposals, coins)
    k = len(proposals)
    drawn = [1.0] * k if q is None else [q[i].item(token) for i, token in enumerate(proposals)]
    k = next((i for i, value in enumerate(drawn) if not value > 0), k)
    draft = proposals if q is None else q
    return (_verify_token if rule == "token" else _verify_block)(p, draft, proposals[:k], drawn, coins)


def verify_greedy(best: list[int], proposals: list[int]) -> tuple[int, int]:
    """What `verify` gives for one-hot p, without making it: best holds the argmax of each of the k + 1 rows."""
    accepted = next((i for i, token in enumerate(proposals) if token != best[i]), len(proposals))
    return accepted, best[accepted]


def residual(p: np.ndarray, q: np.ndarray | int, scale: float = 1.0) -> np.ndarray:
    """max(scale * p - q, 0) in a new array (V,), not normalized; q is (V',), or the id of a point mass.

    Where that is zero everywhere, or NaN, it is p. Zero everywhere means p = q but for rounding (both sum to 1), so
    that a rejection has no more than the probability of a rounding error, and the token after it may come from p. NaN
    means that q was no distribution; its proposal cannot have been accepted, so that p alone is right.
    """
    weights, mass = _excess(p, q, scale)
    return weights if mass > 0 else p


def _excess(p: np.ndarray, q: np.ndarray | int, scale: float = 1.0) -> tuple[np.ndarray, float]:
    """max(scale * p - q, 0) and its mass."""
    weights = p * scale
    if isinstance(q, int):
        weights[q] -= 1.0
    else:
        common = min(len(p), len(q))
        weights[:common] -= q[:common]
    np.maximum(weights, 0.0, out=weights)
    return weights, weights.sum(dtype=np.float64).item()


def _verify_token(p, draft, proposals, drawn, coins) -> tuple[int, int]:
    for i, token in enumerate(proposals):
        if not coins.flip(p[i].item(token), drawn[i]):
            return i, coins.pick(residual(p[i], draft[i]))
    return len(proposals), coins.pick(p[len(proposals)])


def _verify_block(p, draft, proposals, drawn, coins) -> tuple[int, int]:
    ratios = [1.0]
    for i, token in enumerate(proposals):
        ratios.append(min(1.0, ratios[-1] * p[i].item(token) / drawn[i]))
    k = len(proposals)
    # The draws are independent, so looking from the right finds the largest success without making the others.
    if coins.flip(ratios[k], 1.0):
        return k, coins.pick(p[k])
    for i in range(k - 1, 0, -1):
        weights, mass = _excess(p[i], draft[i], ratios[i])
        if coins.flip(mass, mass + 1.0 - ratios[i]):
            return i, coins.pick(weights)
    return 0, coins.pick(residual(p[0], draft[0]))


def _verify_match(p, tokens, coins) -> tuple[int, int]:
    for i, token in enumerate(tokens):
        drawn = coins.pick(p[i])
        if drawn != token:
            return i, drawn
    return len(tokens), coins.pick(p[len(tokens)])
