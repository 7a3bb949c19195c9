"""The three forward passes of distilling, and the file between them, against transformers."""

import json
from itertools import groupby

import pytest
import torch
from checkpoints import save_checkpoint
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from src.distill.checkpoint import LAYERS_FILE, dequantize, export, join, quantize
from src.distill.data import ANSWER_TEMPERATURES, LONGEST, Script, conversations
from src.distill.measure import held_out
from src.distill.product import product
from src.distill.shards import ANSWER, GIVEN, QUESTION
from src.distill.streams import fit
from src.distill.student import Student
from src.distill.teacher import Teacher
from src.speculative.errors import ModelError
from src.speculative.loading import load_tokenizer, read_weights

FAMILIES = ("llama", "qwen2")  # qwen2 has biases
TOTAL, LENGTH = 3, 160  # long enough for questions to end and answers to begin


@pytest.fixture(scope="module", params=FAMILIES)
def target(request, tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp(request.param), request.param, num_hidden_layers=TOTAL)


@pytest.fixture(scope="module")
def parts(target):
    """config, weights, and transformers' model of the target."""
    return AutoConfig.from_pretrained(target), read_weights(target), AutoModelForCausalLM.from_pretrained(target)


@pytest.fixture(scope="module")
def shard(target, parts):
    config, weights, _ = parts
    teacher = Teacher(config, weights, 12, LENGTH, (1, TOTAL), dtype=torch.float32)
    script = Script(load_tokenizer(target))
    generator = torch.Generator().manual_seed(0)
    conversations(teacher, script, generator, LENGTH)
    # The second batch, because it reuses what the first one left of the header.
    return conversations(teacher, script, generator, LENGTH)


def test_the_teacher_says_and_sees_what_transformers_does(target, parts, shard):
    _, _, model = parts
    start = len(Script(load_tokenizer(target)).header) - 1
    with torch.inference_mode():
        truth = model(shard["ids"].long(), output_hidden_states=True)
    logprobs = truth.logits.log_softmax(-1)[:, start:]
    best = logprobs.topk(shard["top_ids"].shape[-1], -1)
    assert (shard["top_ids"][:, start:, 0] == best.indices[..., 0]).float().mean() > 0.999
    torch.testing.assert_close(shard["top_logprobs"][:, start:].float(), best.values, atol=2e-2, rtol=2e-3)
    assert not shard["top_ids"][:, :start].any()
    first = truth.hidden_states[1][:, start:]
    torch.testing.assert_close(shard["states"][:, start:, 0].float(), first, atol=0.05, rtol=0.02)


def test_the_target_writes_all_that_it_is_not_given(target, shard):
    """Every token of a greedy answer is the likeliest one, and turns are separated as the chat template has it."""
    script = Script(load_tokenizer(target))
    assert shard["ids"][:, : len(script.header)].tolist() == [script.header] * 12
    assert not shard["part"][:, : len(script.header)].any()
    greedy = answered = 0
    for row in range(12):
        part, ids = shard["part"][row], shard["ids"][row].tolist()
        answers = (part[1:] == ANSWER).nonzero()[:, 0].tolist()
        likeliest = shard["top_ids"][row, :, 0].tolist()
        answered += bool(answers)
        greedy += bool(answers) and all(ids[i + 1] == likeliest[i] for i in answers)
        for place in range(len(script.header), LENGTH):
            if part[place] == GIVEN and part[place - 1] != GIVEN:
                between = script.to_answer if part[place - 1] == QUESTION else script.to_question
                text = ids[place - 1 :] if ids[place - 1] == script.stop else ids[place:]
                assert text[: len(between)] == between[: len(text)]
        for kind, turn in groupby(part.tolist()):
            assert kind == GIVEN or len(list(turn)) <= LONGEST[kind]
    share = ANSWER_TEMPERATURES.count(0.0) / len(ANSWER_TEMPERATURES)
    assert greedy == pytest.approx(share * answered, abs=2.5)
    assert answered > 8


def test_the_student_of_all_layers_is_the_target(parts, shard):
    config, weights, model = parts
    student = Student(config, weights, list(range(TOTAL)), dtype=torch.float32)
    ids, streams = shard["ids"].long(), []
    with torch.inference_mode():
        hidden = student(ids, streams)
        truth = model(ids, output_hidden_states=True)
    torch.testing.assert_close(hidden @ student.head.t(), truth.logits, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(streams[0], truth.hidden_states[1], atol=1e-3, rtol=1e-3)
    figures = held_out(student, shard, 12)
    assert figures["agreement"] > 0.99
    known = shard["top_logprobs"][:, :-1][shard["part"][:, 1:] == ANSWER].float().exp().sum(-1)
    assert figures["acceptance"] == pytest.approx(float(known.mean()), abs=2e-3), "all that was stored of the target"
    assert figures["loss"] == pytest.approx(0, abs=2e-3)


def test_the_joined_checkpoint_is_the_student(tmp_path, target, parts):
    """transformers loads it and computes the student's logits: before rounding to 8 bits nearly, after it exactly."""
    config, weights, _ = parts
    student = Student(config, weights, [0, 2], dtype=torch.float32)
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for value in student.parameters():
            value += 0.02 * torch.randn(value.shape, generator=chance)
    ids = torch.randint(250, (2, 20), generator=chance)
    before = (student(ids) @ student.head.t()).detach()
    export(student, torch.tensor([3, 5, 8]), tmp_path / "layers")
    join(tmp_path / "layers", target, tmp_path / "draft")
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "draft", dtype=torch.float32)
    assert draft.config.num_hidden_layers == 2
    with torch.inference_mode():
        logits = draft(ids).logits
        torch.testing.assert_close(logits, student(ids) @ student.head.t(), atol=1e-4, rtol=1e-4)
    assert (logits - before).norm() < 0.05 * before.norm()
    assert json.loads((tmp_path / "draft/draft_vocab.json").read_text()) == [3, 5, 8]
    assert load_tokenizer(tmp_path / "draft").get_vocab() == load_tokenizer(target).get_vocab()


def test_layers_of_another_target_are_refused(tmp_path, target, parts):
    config, weights, _ = parts
    export(Student(config, weights, [0], dtype=torch.float32), torch.tensor([1]), tmp_path / "layers")
    other = save_checkpoint(tmp_path / "other", hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
    with pytest.raises(ModelError, match="trained from another"):
        join(tmp_path / "layers", other, tmp_path / "draft")
    with pytest.raises(ModelError, match=r"no trained layers; make them with"):
        join(tmp_path / "nothing", target, tmp_path / "draft")


@pytest.mark.parametrize("shape", [(3, 64), (5, 32), (4, 24)])
def test_eight_bits_are_the_nearest_of_their_group(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values, scale = quantize(weight)
    back = dequantize(values, scale)
    size = 32 if shape[1] % 32 == 0 else shape[1]
    for row in range(shape[0]):
        for first in range(0, shape[1], size):
            group = weight[row, first : first + size]
            step = float(scale[row, first // size])
            assert step == pytest.approx(float(group.abs().max()) / 127, rel=2e-3)
            assert float((back[row, first : first + size] - group).abs().max()) <= step * 0.51


def test_the_fit_is_no_worse_than_any_nearby_weights(parts, shard):
    """The last layer's output product minimizes the distance, so no change of it brings the stream any nearer."""
    config, weights, _ = parts
    student = Student(config, weights, [0, 2], dtype=torch.float32)
    states, ids = shard["states"], shard["ids"].long()
    known = states[:, :, -1].any(-1)
    aim = states[:, :, -1].float()[known]
    length = aim.square().mean(-1, keepdim=True).sqrt()

    def apart() -> float:
        streams = []
        with torch.no_grad():
            student(ids, streams)
        return float(((streams[-1][known] - aim) / length).square().mean())

    before = apart()
    taken = fit(student, weights, [1, TOTAL], ids, states)
    assert taken[0][0] == taken[1][0] == 0
    after = apart()
    assert after < 0.9 * before
    weight = student.weights["model.layers.1.mlp.down_proj.weight"]
    best, chance = weight.detach().clone(), torch.Generator().manual_seed(5)
    for size in (0.3, 0.1, 0.03):
        for _ in range(5):
            weight.data = best + size * torch.randn(best.shape, generator=chance)
            assert apart() > after


def test_the_product_and_its_gradients_are_those_of_autograd():
    chance = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(shape, generator=chance) for shape in ((2, 7, 16), (24, 16), (24,)))
    upstream = torch.randn(2, 7, 24, generator=chance)
    results = []
    for function in (product, torch.nn.functional.linear):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
        y = function(*leaves)
        y.backward(upstream)
        results.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_file_that_was_cut_off_is_refused(tmp_path, target, parts):
    config, weights, _ = parts
    export(Student(config, weights, [0], dtype=torch.float32), torch.tensor([1]), tmp_path)
    stored = load_file(tmp_path / LAYERS_FILE)
    stored["model.layers.7.mlp.up_proj.weight"] = torch.zeros(2, 2)
    save_file(stored, tmp_path / LAYERS_FILE, metadata={"kept": "[0]"})
    with pytest.raises(ModelError, match="does not fit"):
        join(tmp_path, target, tmp_path / "draft")
