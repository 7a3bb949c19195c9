"""The exact law of the decoder's output, by following every random outcome through the code that decodes.

All randomness of decoding is `Coins.uniform`. `Fork` puts a number into it that stands for a whole cell of [0, 1), and
the rest of `Coins` (the strict comparison, the inverted running sum) runs as it is. A run of the real loop under such
coins is one path through the tree of outcomes; `law` walks the tree depth first, starting the loop anew for each path
and replaying its choices, and adds up the probabilities.

What lies below a state of the decoder (the tokens so far, what both caches hold) is computed once. The target's own
law is computed from its table in plain Python, by `own_law`, which shares no code with the decoder.
"""

import math
from collections import defaultdict

from src.speculative.coins import Coins
from src.speculative.loop import Plan, Run, decode
from src.speculative.models import CausalLM


class Path:
    """Choices that are replayed and then, beyond them, the first of the alternatives each time."""

    def __init__(self, choices=()):
        self.choices, self.sizes, self.taken, self.chance = list(choices), [], 0, 1.0

    def choose(self, cells: list[tuple[float, float]]) -> float:
        """Takes one of the cells [a, b) of [0, 1) and returns a number in it."""
        if self.taken == len(self.choices):
            self.choices.append(0)
        low, high = cells[self.choices[self.taken]]
        self.sizes.append(len(cells))
        self.taken += 1
        self.chance *= high - low
        # The left end belongs to a cell. Of the first one it is 0, the number that a careless comparison trips over.
        return 0.0 if low == 0.0 else (low + high) / 2

    def following(self, kept: int) -> list[int] | None:
        """The choices of the next path that agrees with this one in the first `kept`; None after the last."""
        place = len(self.choices)
        while place > kept:
            place -= 1
            if self.choices[place] + 1 < self.sizes[place]:
                return [*self.choices[:place], self.choices[place] + 1]
        return None


class Fork(Coins):
    """Coins whose uniform number is chosen by a path, one number for each cell of the decision at hand."""

    def __init__(self, path: Path):
        super().__init__(None)
        self.path, self.number = path, None

    def uniform(self):
        number, self.number = self.number, None
        return number

    def flip(self, numerator, denominator):
        chance = min(1.0, numerator / denominator) if denominator > 0 else float(numerator > 0)
        self.number = self.path.choose([c for c in ((0.0, chance), (chance, 1.0)) if c[0] < c[1]])
        return super().flip(numerator, denominator)

    def pick(self, weights):
        total, below, cells = math.fsum(weights), 0.0, []
        for weight in weights.tolist():
            if weight > 0:
                cells.append((below / total, (below + weight) / total))
                below += weight
        self.number = self.path.choose(cells)
        return super().pick(weights)


def law(target, draft, prompt, plan: Plan) -> dict[tuple[int, ...], float]:
    """Probability of each output of the decoding loop. draft: a model, a drafter that draws nothing, or None."""
    known = {}

    def start(path):
        for model in (target, draft):
            if isinstance(model, CausalLM):
                model.rollback(0)
        coins = Fork(path)
        run = Run(target, draft, prompt, plan, (coins, coins))
        return run, decode(run)

    def below(depth, choices):
        """The law of what follows after `depth` steps that took those choices."""
        found, next_choices = defaultdict(float), list(choices)
        while next_choices is not None:
            path = Path(next_choices)
            run, steps = start(path)
            emitted = [token for _ in range(depth) for token in next(steps)]
            before, step = path.chance, next(steps, None)
            _demand_prefixes(run)
            if step is None:
                return {(): 1.0}
            state = (tuple(emitted + step), run.schedule.limit, *(tuple(m.tokens.tolist()) for m in _models(run)))
            if state not in known:
                known[state] = below(depth + 1, path.choices)
            for tail, chance in known[state].items():
                found[(*step, *tail)] += path.chance / before * chance
            next_choices = path.following(len(choices))
        return dict(found)

    return below(0, [])


def _demand_prefixes(run):
    """Both caches hold a beginning of what stands, and the target's all of it but the last token."""
    stands = run.sequence[: run.length].tolist()
    for model in _models(run):
        assert model.tokens.tolist() == stands[: model.length], "a cache holds what the output does not"
    assert run.target.length == len(stands) - 1


def _models(run):
    return [model for model in (run.target, getattr(run.drafter, "model", None)) if model is not None]


def own_law(target, prompt, plan) -> dict[tuple[int, ...], float]:
    """The law of plain decoding, from the target's table alone."""
    laws = defaultdict(float)

    def extend(generated, chance):
        text = "".join(plan.tok.pieces[i] for i in generated) if plan.stop else ""
        ended = generated and (generated[-1] in plan.eos_ids or any(string in text for string in plan.stop))
        full = len(prompt) + len(generated) > target.context
        if ended or full or len(generated) == plan.max_new_tokens:
            laws[generated] += chance
            return
        row = target.row((*prompt, *generated))
        for token, p in enumerate(warped(row, plan.settings, prompt, generated)):
            if p > 0:
                extend((*generated, token), chance * p)

    prompt = tuple(prompt.tolist())
    extend((), 1.0)
    return dict(laws)


def warped(row, settings, prompt, generated) -> list[float]:
    """The distribution of one token, from its definitions; no two logits are supposed to be equal."""
    row = [x + settings.logit_bias.get(i, 0.0) for i, x in enumerate(row)]
    for i in {*prompt, *generated}:
        row[i] = row[i] * settings.repetition_penalty if row[i] < 0 else row[i] / settings.repetition_penalty
    for i in set(generated):
        row[i] -= settings.presence_penalty + settings.frequency_penalty * generated.count(i)
    row = [-math.inf if i in settings.forbidden else x for i, x in enumerate(row)]
    ranked = sorted(range(len(row)), key=lambda i: -row[i])
    if settings.temperature == 0:
        return [float(i == ranked[0]) for i in range(len(row))]
    row = [x / settings.temperature for x in row]
    kept = ranked[: settings.top_k or len(row)]
    p = _softmax(row, kept)
    mass, nucleus = 0.0, []
    for i in kept:
        if mass < settings.top_p:
            nucleus.append(i)
        mass += p[i]
    p = _softmax(row, nucleus)
    return _softmax(row, [i for i in nucleus if p[i] >= settings.min_p * max(p)])


def _softmax(row, kept):
    top = max(row[i] for i in kept)
    weights = {i: math.exp(row[i] - top) for i in kept}
    total = math.fsum(weights.values())
    return [weights.get(i, 0.0) / total for i in range(len(row))]


def variation(one: dict, other: dict) -> float:
    """Total variation distance: half the sum of |difference| over all outcomes."""
    return math.fsum(abs(one.get(x, 0.0) - other.get(x, 0.0)) for x in one.keys() | other.keys()) / 2


def distance(target, draft, prompt, plan: Plan) -> float:
    """Total variation between what decoding gives and what the target alone would."""
    found, wanted = law(target, draft, prompt, plan), own_law(target, prompt, plan)
    assert abs(math.fsum(wanted.values()) - 1) < 1e-12
    return variation(found, wanted)
