"""Timing single passes: of a target by its width, of a draft, and what a step spends besides, in interleaved rounds."""

import random
from functools import partial
from time import monotonic

from src.pipeline.pair import decode
from src.pipeline.params import Params

DRAFTED = 4  # draft passes timed together, as in a window of k = 4
STEPS = 16  # tokens decoded to see what a step spends outside of the passes
MOST_ROUNDS, FEWEST_ROUNDS, BUDGET = 16, 5, 8.0  # rounds for each draft, until its seconds are spent


def median_prompt(encoded: list):
    """The token ids, 1-D int64, of the prompt of median length."""
    return sorted(encoded, key=len)[len(encoded) // 2]


def sequence_of(params: Params, pair, ids, widest: int):
    """A prompt with what plain decoding makes of it, and the place in it, halfway through, where passes begin."""
    import torch

    new, _ = decode(params.model_copy(update={"ignore_eos": True}), pair, ids, 0)
    sequence = torch.cat((ids, new)).to(pair[0].device)
    while len(sequence) < len(ids) + widest + 1:
        sequence = torch.cat((sequence, sequence))
    return sequence, min(len(ids) + len(new) // 2, len(sequence) - widest)


def rounds_of(params: Params, pair, sequence, positions: int, widest: int) -> tuple[list[list[float]], ...]:
    """Seconds of the target's passes by rows, and of the draft's, an entry a round: a pass that follows another, and a
    window's first one, over one row and over two.

    In each round every one of them once, in shuffled order. A window's first pass follows one of the target, which has
    driven the draft's weights out of the processor's caches, as when decoding.
    """
    import torch

    jobs = _jobs(params, pair, sequence, positions, range(1, widest + 1))
    seconds: list[list[float]] = [[] for _ in jobs]
    with torch.inference_mode():
        for job in jobs * 2:  # the first passes of a width set up its kernels
            job()
        order, begun, rounds = list(range(len(jobs))), monotonic(), 0
        shuffle = random.Random(params.seed).shuffle
        while rounds < FEWEST_ROUNDS or (rounds < MOST_ROUNDS and monotonic() - begun < BUDGET):
            shuffle(order)
            for at in order:
                seconds[at].append(jobs[at]())
            rounds += 1
    return seconds[:widest], seconds[widest:]


def one_round(params: Params, pair, ids, tokens: list[int], k: int) -> list[float]:
    """Seconds of the passes of `results.Passes`, once each, halfway through the tokens that followed a prompt's ids.

    What was decoded there before has set up all kernels.
    """
    import torch

    sequence = torch.cat((ids, torch.tensor(tokens, dtype=torch.int64))).to(pair[0].device)
    positions = max(1, min(len(ids) + len(tokens) // 2, len(sequence) - k - 1))
    jobs = _jobs(params, pair, sequence, positions, (1, k + 1))
    with torch.inference_mode():
        return [job() for job in jobs]


def _jobs(params: Params, pair, sequence, positions: int, widths) -> list:
    """What times each pass: of the target over so many rows, of the draft after another, and first over 1 and 2 rows.

    Both models have then seen what comes before.
    """
    import torch

    target, draft, _ = pair
    seen = sequence[: positions + 1]
    drafter = _drafter(params, draft, seen, target)
    target.rollback(0)
    with torch.inference_mode():
        target.forward(sequence[:positions], keep=0)
    first, two_rows = (partial(_first, target, drafter, draft, sequence, seen, unseen) for unseen in (1, 2))
    own = [partial(_pass, target, sequence, positions, rows) for rows in widths]
    return [*own, partial(_later, drafter, draft, seen), first, two_rows]


def _pass(target, sequence, positions: int, rows: int) -> float:
    from src.speculative.stats import now

    begun = now(target.device)
    target.forward(sequence[positions : positions + rows])
    spent = now(target.device) - begun
    target.rollback(positions)
    return spent


def _drafter(params: Params, draft, sequence, target):
    import torch

    from src.speculative.coins import Coins
    from src.speculative.drafters import ModelDrafter
    from src.speculative.sampling import Sampling

    chosen = {name: getattr(params, name) for name in ("temperature", "top_k", "top_p", "min_p")}
    drafter = ModelDrafter(draft, Sampling(**chosen), Coins(torch.Generator().manual_seed(params.seed)))
    draft.rollback(0)
    with torch.inference_mode():
        drafter.begin(sequence, target.vocab_size)
    return drafter


def _first(target, drafter, draft, sequence, seen, unseen: int) -> float:
    """Seconds of a window's first draft pass."""
    _pass(target, sequence, len(seen) - 1, 1)
    return _propose(drafter, draft, seen, unseen, 1)


def _later(drafter, draft, seen) -> float:
    """Seconds of a draft pass that follows another."""
    _propose(drafter, draft, seen, 1, 1)
    return _propose(drafter, draft, seen, 1, min(DRAFTED, drafter.room(len(seen))))


def _propose(drafter, draft, sequence, unseen: int, k: int) -> float:
    """Seconds of one draft pass, the choice of its token included, out of a window of k, the first over unseen rows."""
    from src.speculative.stats import now

    draft.rollback(len(sequence) - unseen)
    begun = now(draft.device)
    drafter.propose(sequence, k)
    spent = now(draft.device) - begun
    draft.rollback(len(sequence) - 1)
    return spent / k


def steps(params: Params, pair, ids) -> tuple[list[float], list[float], list[float]]:
    """Seconds a step outside of the passes, plain and speculative, and of a prefill by the target alone."""
    short = params.model_copy(update={"max_new_tokens": STEPS, "ignore_eos": True})
    plain, speculative, prefill = [], [], []
    for _ in range(FEWEST_ROUNDS):
        for k, other in ((0, plain), (DRAFTED, speculative)):
            _, stats = decode(short, pair, ids, k)
            other.append(stats.other_seconds / stats.target_passes)
            if k == 0:
                prefill.append(stats.prefill_seconds)
    return plain, speculative, prefill
