"""Timing single passes: of a target by its width, of a draft, and what a step spends besides, in interleaved rounds."""

import random
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


def rounds_of(params: Params, pair, sequence, positions: int, widest: int) -> tuple[list[list[float]], list[float]]:
    """Seconds by rows, and of a draft pass: in each round every width and the draft once, in shuffled order."""
    import torch

    target, draft, _ = pair
    drafter = _drafter(params, draft, sequence[: positions + 1], target)
    target.rollback(0)
    with torch.inference_mode():
        target.forward(sequence[:positions], keep=0)
        for _ in range(2):  # the first passes of a width set up its kernels
            for rows in range(1, widest + 1):
                _pass(target, sequence, positions, rows)
            _propose(drafter, draft, sequence[: positions + 1])
        seconds: list[list[float]] = [[] for _ in range(widest)]
        drafted: list[float] = []
        order, begun = list(range(widest + 1)), monotonic()
        shuffle = random.Random(params.seed).shuffle
        while len(drafted) < FEWEST_ROUNDS or (len(drafted) < MOST_ROUNDS and monotonic() - begun < BUDGET):
            shuffle(order)
            for rows in order:
                if rows:
                    seconds[rows - 1].append(_pass(target, sequence, positions, rows))
                else:
                    drafted.append(_propose(drafter, draft, sequence[: positions + 1]))
    return seconds, drafted


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


def _propose(drafter, draft, sequence) -> float:
    """Seconds of one draft pass, the choice of its token included, out of a window of them."""
    from src.speculative.stats import now

    begun = now(draft.device)
    drafter.propose(sequence, DRAFTED)
    spent = now(draft.device) - begun
    draft.rollback(len(sequence) - 1)
    return spent / DRAFTED


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
