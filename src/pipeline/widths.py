"""Digests of the logits that a target gives to known tokens, row by row or in windows: equal digests, equal bits."""

import hashlib


def digests(target, ids, tokens: list[int], rows: int) -> list[str]:
    """A digest for each position of `tokens`, decoded after the prompt `ids`, when a pass has `rows` rows.

    Empty where the target is not width-invariant, for then they differ. With rows=1 these are the passes of plain
    decoding; with rows=k+1 the ones of verification. Worked example: prompt a b c, tokens x y z, rows 2: the prefill
    takes a b; the passes take (c x) and (y), whose rows are the distributions of x, y and z.
    """
    import torch

    if not target.exact:
        return []
    sequence = torch.cat((ids, torch.tensor(tokens, dtype=torch.int64))).to(target.device)
    first = len(ids) - 1
    found: list[str] = []
    with torch.inference_mode():
        done = target.reuse(sequence[: first + 1])
        if first > done:
            target.forward(sequence[done:first], keep=0)
        for start in range(first, first + len(tokens), rows):
            logits = target.forward(sequence[start : min(start + rows, first + len(tokens))])
            found += [_digest(row) for row in logits]
    return found


def margin(target, ids, tokens: list[int], other: int) -> float:
    """Plain decoding's logit of the last of `tokens` minus that of the token `other`, at the position of that last."""
    import torch

    target.rollback(0)
    sequence = torch.cat((ids, torch.tensor(tokens, dtype=torch.int64))).to(target.device)
    with torch.inference_mode():
        if len(ids) > 1:
            target.forward(sequence[: len(ids) - 1], keep=0)
        for position in range(len(ids) - 1, len(sequence) - 1):
            row = target.forward(sequence[position : position + 1])[-1]
    return float(row[tokens[-1]].float() - row[other].float())


def _digest(row) -> str:
    import torch

    return hashlib.blake2b(row.contiguous().view(torch.uint8).cpu().numpy().tobytes(), digest_size=8).hexdigest()
