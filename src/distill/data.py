"""On-policy data: conversations that the target writes alone, with its likeliest next tokens at every position.

Given the system header and the first words of a user's turn, the target writes the question (sampled) and then its
answer (mostly greedy, as the draft is mostly used); when an answer ends or grows long, the next question follows in
the same conversation; in some the target goes on after the end of an answer, as benchmarks have it do. So nothing is
downloaded, and the draft learns where it will be used: on what the target itself writes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tqdm import tqdm

from .openings import kinds
from .shards import ANSWER, GIVEN, HELD_OUT, QUESTION, read, shards
from .teacher import Teacher

TOP = 64  # how many of the likeliest tokens are kept a position
LENGTH = 224  # tokens of a conversation, header included
LONGEST = {QUESTION: 112, ANSWER: 80}  # tokens of a turn; a long answer repeats itself, and a new task teaches more
QUESTION_TEMPERATURES = (0.6, 0.75, 0.9)
ANSWER_TEMPERATURES = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.7, 1.0)
GOES_ON = (True, False, False)  # after the end of an answer


class Script:
    """The fixed pieces of a conversation as token ids: header, openings, and what stands between turns."""

    def __init__(self, tokenizer):
        mark = "\x00"
        turns = [{"role": "user", "content": mark}, {"role": "assistant", "content": mark}] * 2
        text = tokenizer.apply_chat_template(turns, tokenize=False)
        pieces = text.split(mark)
        encode = lambda piece: tokenizer.encode(piece, add_special_tokens=False)  # noqa: E731
        self.header, self.to_answer, self.to_question = (encode(piece) for piece in pieces[:3])
        self.stop = self.to_answer[0]
        self.kinds = [[encode(opening) for opening in kind] for kind in kinds()]

    def opening(self, generator: torch.Generator) -> list[int]:
        """Nothing in one of six cases, else the first words of a task of a random kind."""
        draw = lambda n: int(torch.randint(n, (), generator=generator))  # noqa: E731
        if draw(6) == 0:
            return []
        kind = self.kinds[draw(len(self.kinds))]
        return kind[draw(len(kind))]


def conversations(teacher: Teacher, script: Script, generator: torch.Generator, length: int = LENGTH) -> dict:
    """One batch of conversations, (batch, length): ids and part (who wrote it); (batch, length, TOP): top_ids and
    top_logprobs of the token that follows each position; and (batch, length, n, hidden) bfloat16: states, what the
    teacher saw at its depths. The last three are zeros before the last token of the header."""
    batch, start = teacher.batch, len(script.header)
    ids = torch.zeros(batch, length, dtype=torch.int64)
    part = torch.full((batch, length), GIVEN, dtype=torch.uint8)
    top_ids = torch.zeros(batch, length, TOP, dtype=torch.int32)
    top_logprobs = torch.zeros(batch, length, TOP, dtype=torch.float16)
    states = torch.zeros(batch, length, len(teacher.depths), teacher.embedding.shape[1], dtype=torch.bfloat16)
    ids[:, :start] = torch.tensor(script.header)
    rows = [_Row(script, generator) for _ in range(batch)]
    # The header's keys and values are the same in every batch, so what the last one left is still right.
    first = start - 1 if teacher.header == script.header else 0
    teacher.header = script.header
    for at in tqdm(range(first, length), desc=f"{batch} conversations", disable=None, leave=False):
        logits = teacher.step(ids[:, at], at)
        if at < start - 1:
            continue
        best, where = logits.topk(TOP, -1)
        logprobs = best.float() - logits.float().logsumexp(-1, keepdim=True)
        top_ids[:, at], top_logprobs[:, at] = where.int(), logprobs.half()
        states[:, at] = torch.stack(teacher.seen, 1)
        if at + 1 < length:
            heat = torch.tensor([row.temperature for row in rows])
            drawn = _draw(where, logprobs, heat, generator).tolist()
            written = [row.write(token) for row, token in zip(rows, drawn, strict=True)]
            ids[:, at + 1], part[:, at + 1] = torch.tensor(written).T
    return {"ids": ids.int(), "part": part, "top_ids": top_ids, "top_logprobs": top_logprobs, "states": states}


class _Row:
    """Whose turn it is in one conversation, and what has to be said before the target may go on."""

    def __init__(self, script: Script, generator: torch.Generator):
        self.script, self.generator, self.turn, self.said = script, generator, QUESTION, 0
        self.due = list(script.opening(generator))
        choose = lambda values: values[int(torch.randint(len(values), (), generator=generator))]  # noqa: E731
        self.heat = {QUESTION: choose(QUESTION_TEMPERATURES), ANSWER: choose(ANSWER_TEMPERATURES)}
        self.goes_on = choose(GOES_ON)

    @property
    def temperature(self) -> float:
        return self.heat[self.turn]

    def write(self, token: int) -> tuple[int, int]:
        """The next token and its part, given the one that the target drew."""
        if self.due:
            return self.due.pop(0), GIVEN
        turn, stop = self.turn, self.script.stop
        self.said += 1
        ends = token == stop and not (turn == ANSWER and self.goes_on)
        if ends or self.said == LONGEST[turn]:
            between = self.script.to_answer if turn == QUESTION else self.script.to_question
            self.due = between[1:] if token == stop else list(between)
            self.turn, self.said = (ANSWER if turn == QUESTION else QUESTION), 0
            if self.turn == QUESTION:
                self.due += self.script.opening(self.generator)
        return token, turn


def _draw(where: torch.Tensor, logprobs: torch.Tensor, heat: torch.Tensor, generator: torch.Generator):
    """One token of each row's likeliest, at its temperature: greedy where that is 0."""
    heat = heat[:, None]
    chances = (logprobs / heat.clamp(min=1e-6)).softmax(-1)
    chosen = torch.where(heat == 0, 0, torch.multinomial(chances, 1, generator=generator))
    return where.gather(1, chosen)[:, 0]


def write_shards(teacher: Callable[[], Teacher], script: Script, folder: Path, tokens: int, seed: int) -> Iterator[int]:
    """Fills `folder` with shards until those to be trained on hold `tokens` tokens that the target wrote.

    Yields their count before the first and after each. Goes on where an interrupted run stopped: a shard is whole or
    absent, and its number is its seed. The shard HELD_OUT comes first and does not count.
    teacher: called when there is something to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts, seen = [], set()
    for path in shards(folder):
        shard = read(path, "ids", "part")
        counts.append(_keep_new(shard, script, seen)[1])
    yield sum(counts[HELD_OUT + 1 :])
    writer = None
    while sum(counts[HELD_OUT + 1 :]) < tokens or len(counts) <= HELD_OUT + 1:
        writer = writer or teacher()
        generator = torch.Generator().manual_seed(seed * 1_000_003 + len(counts))
        shard, new = _keep_new(conversations(writer, script, generator), script, seen)
        path = folder / f"{len(counts):05d}.safetensors"
        save_file(shard, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
        counts.append(new)
        yield sum(counts[HELD_OUT + 1 :])


def _keep_new(shard: dict, script: Script, seen: set) -> tuple[dict, int]:
    """The conversations whose first question was not asked before, and how many tokens the target wrote in them."""
    keep = []
    for row, ids in enumerate(shard["ids"].tolist()):
        body = ids[len(script.header) :]
        question = tuple(body[: body.index(script.stop)] if script.stop in body else body)
        if question not in seen:
            seen.add(question)
            keep.append(row)
    kept = {name: tensor[keep].contiguous() for name, tensor in shard.items()}
    return kept, int((kept["part"] != GIVEN).sum())
