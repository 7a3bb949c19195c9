"""What a draft is taught: the data's bookkeeping, the losses and the closed-form fit, against plain computations."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from src.distill.layout import depths, starts
from src.distill.lessons import QUESTION_WEIGHT, batches, frequent, lesson
from src.distill.loss import LOSSES, Lesson, head_gradient
from src.distill.openings import kinds
from src.distill.shards import ANSWER, GIVEN, QUESTION, shards
from src.distill.streams import stream_loss

ROOT = Path(__file__).parent.parent
VOCABULARY, TOP = 40, 8


def made_up(rows: int, length: int, seed: int) -> dict:
    """A shard of random conversations, with the target's distribution at every position."""
    chance = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(rows, length, VOCABULARY, generator=chance)
    logprobs, ids = logits.log_softmax(-1).topk(TOP, -1)
    return {
        "ids": torch.randint(VOCABULARY, (rows, length), generator=chance).int(),
        "part": torch.randint(3, (rows, length), generator=chance).to(torch.uint8),
        "top_ids": ids.int(),
        "top_logprobs": logprobs.half(),
        "states": torch.randn(rows, length, 2, 4, generator=chance).bfloat16(),
    }


def write_shards(folder: Path, count: int, rows: int = 6) -> None:
    for number in range(count):
        save_file(made_up(rows, 5, number), folder / f"{number:05d}.safetensors")


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_are_those_of_the_whole_distributions(name):
    """Lists all of a small vocabulary as known, so that a divergence of two full distributions is the reference."""
    chance = torch.Generator().manual_seed(1)
    n, width = 300, 6  # more than one chunk
    hidden, head = torch.randn(n, width, generator=chance), torch.randn(VOCABULARY, width, generator=chance)
    p = torch.randn(n, VOCABULARY, generator=chance).softmax(-1)
    order = torch.rand(n, VOCABULARY, generator=chance).argsort(-1)
    weight = torch.rand(n, generator=chance)
    gradient, loss = head_gradient(hidden, head, Lesson(order, p.gather(1, order), weight), LOSSES[name])

    x = hidden.double().requires_grad_()
    q, p = (x @ head.double().t()).softmax(-1), p.double()
    each = {
        "forward_kl": -(p * q.log()).sum(-1),
        "reverse_kl": (q * (q / p).log()).sum(-1),
        "total_variation": 0.5 * (p - q).abs().sum(-1),
    }[name]
    expected = (each * weight).sum() / weight.sum()
    expected.backward()
    # reverse_kl counts what is beyond the listed tokens, here nothing, as 1e-6 of the draft and 1e-4 of the target.
    assert loss == pytest.approx(expected.item(), abs=1e-4)
    torch.testing.assert_close(gradient.double(), x.grad, atol=1e-6, rtol=1e-3)


def test_tokens_that_the_head_lacks_do_not_count():
    hidden, head = torch.randn(3, 4), torch.randn(7, 4)
    p = torch.full((3, 2), 0.4)
    with_lacking = Lesson(torch.tensor([[2, -1]] * 3), p, torch.ones(3))
    without = Lesson(torch.tensor([[2]] * 3), p[:, :1], torch.ones(3))
    for a, b in [[head_gradient(hidden, head, task, LOSSES["forward_kl"]) for task in (with_lacking, without)]]:
        torch.testing.assert_close(a[0], b[0])
        assert a[1] == pytest.approx(b[1])


def test_a_lesson_is_what_the_target_said_after_each_token_that_it_wrote():
    shard = made_up(3, 9, 4)
    columns = torch.arange(VOCABULARY).flip(0)
    ids, counts, task = lesson(shard, columns)
    at = 0
    for row in range(3):
        for place in range(8):
            writer = int(shard["part"][row, place + 1])
            assert bool(counts[row, place]) == (writer != GIVEN)
            if writer == GIVEN:
                continue
            assert ids[row, place] == shard["ids"][row, place]
            assert task.weight[at] == pytest.approx({QUESTION: QUESTION_WEIGHT, ANSWER: 1.0}[writer])
            assert task.columns[at].tolist() == [VOCABULARY - 1 - int(i) for i in shard["top_ids"][row, place]]
            torch.testing.assert_close(task.p[at], shard["top_logprobs"][row, place].float().exp())
            at += 1
    assert at == len(task.p)


def test_batches_go_through_every_conversation_once_a_pass(tmp_path):
    write_shards(tmp_path, 3)
    state = {"passes": {}, "shard": None, "row": 0}
    feed = batches(tmp_path, 2, 0, state)
    rows = [tuple(row) for _ in range(6) for row in next(feed)["ids"].tolist()]
    written = [tuple(row) for number in (1, 2) for row in made_up(6, 5, number)["ids"].tolist()]
    assert sorted(rows) == sorted(written), "the shards but the held-out one, each conversation once"


def test_an_interrupted_run_goes_on_with_the_batches_it_would_have_had(tmp_path):
    write_shards(tmp_path, 4)
    whole = {"passes": {}, "shard": None, "row": 0}
    feed = batches(tmp_path, 4, 7, whole)
    expected = [next(feed)["ids"].tolist() for _ in range(15)]

    state = {"passes": {}, "shard": None, "row": 0}
    seen = []
    for stop in (1, 4, 7, 3):
        state = json.loads(json.dumps(state))  # all that is kept between two runs
        feed = batches(tmp_path, 4, 7, state)
        seen += [next(feed)["ids"].tolist() for _ in range(stop)]
    assert seen == expected


def test_a_new_shard_joins_at_the_next_choice(tmp_path):
    write_shards(tmp_path, 2, rows=2)
    feed = batches(tmp_path, 2, 0, {"passes": {}, "shard": None, "row": 0})
    next(feed)
    write_shards(tmp_path, 3, rows=2)
    assert sorted(next(feed)["ids"].tolist()) == sorted(made_up(2, 5, 2)["ids"].tolist())


def test_the_trimmed_head_keeps_the_ids_with_the_most_expected_uses(tmp_path):
    write_shards(tmp_path, 3)
    uses = [0.0] * VOCABULARY
    for number in (1, 2):
        shard = made_up(6, 5, number)
        for row in range(6):
            for place in range(4):
                if shard["part"][row, place + 1] != GIVEN:
                    pairs = zip(shard["top_ids"][row, place], shard["top_logprobs"][row, place], strict=True)
                    for token, logprob in pairs:
                        uses[int(token)] += float(logprob.double().exp())
    best = sorted(range(VOCABULARY), key=lambda token: -uses[token])[:11]
    kept = frequent(shards(tmp_path)[1:], VOCABULARY, 11)
    assert kept.tolist() == sorted(best)
    assert kept.dtype == torch.int64
    assert frequent(shards(tmp_path)[1:], VOCABULARY, 99).tolist() == list(range(VOCABULARY))


def test_the_loss_on_streams_is_in_standard_deviations_of_known_positions():
    chance = torch.Generator().manual_seed(2)
    states = torch.randn(2, 6, 3, 5, generator=chance)
    states[:, :2] = 0  # nothing known there
    ours = [torch.randn(2, 6, 5, generator=chance) for _ in range(3)]
    total = 0.0
    for layer in range(3):
        aims = [states[row, place, layer] for row in range(2) for place in range(2, 6)]
        mine = [ours[layer][row, place] for row in range(2) for place in range(2, 6)]
        lengths = [aim.norm() / 5**0.5 for aim in aims]
        for channel in range(5):
            relative = torch.stack([aim[channel] / length for aim, length in zip(aims, lengths, strict=True)])
            apart = [((m - a)[channel] / length) ** 2 for m, a, length in zip(mine, aims, lengths, strict=True)]
            total += float(sum(apart) / len(apart) / relative.var()) / 5 / 3
    assert float(stream_loss(ours, states)) == pytest.approx(total, rel=1e-5)
    assert float(stream_loss(list(states.unbind(2)), states)) == 0


def test_shares_of_depth():
    for total in range(1, 40):
        for layers in range(1, total + 1):
            ends, begin = depths(total, layers), starts(total, layers)
            assert ends[-1] == total and ends == sorted(set(ends))
            assert len(begin) == layers and len(set(begin)) == layers
            assert all(first <= old < end for first, old, end in zip([0, *ends], begin, ends, strict=False))


def test_no_opening_comes_from_a_prompt_set():
    """Neither holds the other, but for openings of up to four words, such as "What is": anybody begins so."""
    openings = [opening.lower() for kind in kinds() for opening in kind]
    assert len(openings) > 100
    for file in sorted((ROOT / "prompts").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            prompt = json.loads(line)["prompt"].lower()
            for opening in openings:
                assert prompt not in opening
                assert len(opening.split()) < 5 or not prompt.startswith(opening), (file.name, opening)
