"""How well a draft does on held-out conversations, without running the target: what it would say is in the shard."""

import torch
import torch.nn.functional as F

from .shards import ANSWER
from .student import Student

FIELDS = ("ids", "part", "top_ids", "top_logprobs")  # what is read of the held-out shard
KS = (1, 2, 3, 4, 5, 6)


@torch.inference_mode()
def held_out(student: Student, shard: dict, rows: int, ids: torch.Tensor | None = None) -> dict:
    """Figures on the answers of the first `rows` conversations of `shard`, with a head of `ids` (all if None).

    "loss": forward KL in nats; "agreement": share of positions where draft and target have the same likeliest token;
    "acceptance": mean of sum min(p, q), the acceptance rate of one sampled proposal; "tau": for each k, tokens a
    target pass when both are greedy; "accepted": for each k, how often the k-th proposal of a window of six is right.
    """
    head = student.head if ids is None else student.head[ids]
    names = torch.arange(len(student.head)) if ids is None else ids
    columns = torch.full((len(student.head),), -1)
    columns[names] = torch.arange(len(names))
    totals, runs = torch.zeros(4, dtype=torch.float64), []
    for first in range(0, rows, 8):
        part = {name: tensor[first : min(first + 8, rows)] for name, tensor in shard.items()}
        answers = part["part"][:, 1:] == ANSWER
        hidden = student(part["ids"][:, :-1].long())
        agrees = torch.zeros_like(answers)
        for row in range(len(answers)):
            at = answers[row]
            top, p = part["top_ids"][row, :-1][at].long(), part["top_logprobs"][row, :-1][at].float().exp()
            logits = F.linear(hidden[row][at], head).float()
            q = (logits.gather(1, columns[top].clamp(min=0)) - logits.logsumexp(-1, keepdim=True)).exp()
            q = q * (columns[top] >= 0)
            same = names[logits.argmax(-1)] == top[:, 0]
            kl = (p * (p.clamp(min=1e-8).log() - q.clamp(min=1e-8).log())).sum(-1)
            totals += torch.tensor([kl.sum(), same.sum(), torch.minimum(p, q).sum(), len(p)])
            agrees[row, at] = same
        runs += _greedy_runs(part, answers, agrees)
    n = totals[3].clamp(min=1)
    figures = {"loss": totals[0] / n, "agreement": totals[1] / n, "acceptance": totals[2] / n}
    return {k: round(float(v), 4) for k, v in figures.items()} | _windows(runs)


def _greedy_runs(part: dict, answers: torch.Tensor, agrees: torch.Tensor) -> list[list[bool]]:
    """Answers that the target wrote greedily, as lists of whether the draft agreed. On these a greedy draft that was
    right so far has the very context of the data, so its next proposal is right exactly if it agrees here."""
    runs = []
    greedy = part["ids"][:, 1:] == part["top_ids"][:, :-1, 0]
    for row in range(len(answers)):
        starts = [i for i in range(answers.shape[1]) if answers[row, i] and (i == 0 or not answers[row, i - 1])]
        for start in starts:
            end = start
            while end < answers.shape[1] and answers[row, end]:
                end += 1
            if greedy[row, start:end].all():
                runs.append(agrees[row, start:end].tolist())
    return runs


def _windows(runs: list[list[bool]]) -> dict:
    tau, accepted = {}, [0] * max(KS)
    for k in KS:
        passes = tokens = 0
        for run in runs:
            at = 0
            while at + k < len(run):
                right = next((i for i in range(k) if not run[at + i]), k)
                at, passes, tokens = at + right + 1, passes + 1, tokens + right + 1
                if k == max(KS):
                    for i in range(right):
                        accepted[i] += 1
        tau[str(k)] = round(tokens / passes, 3) if passes else None
        last = passes
    return {"tau": tau, "accepted": [round(a / last, 3) if last else None for a in accepted]}
