"""Greedy decoding of tiny random models, against plain decoding by transformers without a cache."""

import math

import pytest
import torch
from tiny import PROMPT, Contrary, decode_greedily, tiny_model

from src.speculative import generate
from src.speculative.errors import ModelError, PromptError, SettingsError
from src.speculative.invariance import make_exact
from src.speculative.models import CausalLM

LENGTH = 13
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def models(request, tmp_path_factory):
    """(target, a draft of other weights, the target once more, what transformers decodes)."""
    target, reference = tiny_model(tmp_path_factory.mktemp("target"), request.param)
    draft, _ = tiny_model(tmp_path_factory.mktemp("draft"), request.param, seed=1, num_hidden_layers=1)
    copy, _ = tiny_model(tmp_path_factory.mktemp("copy"), request.param)
    return target, draft, copy, decode_greedily(reference, PROMPT, LENGTH)


def decode(target, draft, k, count=LENGTH, prompt=PROMPT, **more):
    for model in (target, draft):
        if isinstance(model, CausalLM):
            model.rollback(0)
    tokens, stats = generate(target, draft, None, prompt, k=k, max_new_tokens=count, **more)
    assert stats.generated == len(tokens)
    assert target.tokens.tolist() == [*prompt.tolist(), *tokens.tolist()][:-1]
    return tokens.tolist(), stats


def test_plain_decoding_is_transformers_decoding(models):
    target, draft, _, wanted = models
    for other, k in ((None, 4), (draft, 0)):
        tokens, stats = decode(target, other, k)
        assert tokens == wanted
        assert (stats.target_passes, stats.draft_passes, stats.proposed) == (LENGTH, 0, 0)
        assert stats.mean_accepted_length == 1 and stats.acceptance_rate is None and stats.stop == "length"


@pytest.mark.parametrize("k", range(1, 9))
def test_a_random_draft_changes_no_token(models, k):
    target, draft, _, wanted = models
    tokens, stats = decode(target, draft, k)
    assert tokens == wanted
    assert 0 <= stats.acceptance_rate < 1
    assert sum(i * n for i, n in enumerate(stats.histogram)) == stats.accepted == sum(stats.accepted_by_position)


@pytest.mark.parametrize("k", range(1, 9))
def test_the_target_as_its_own_draft_is_always_accepted(models, k):
    """The cut last window, for which k is not a divisor of what is left, must not count against it."""
    target, _, copy, wanted = models
    for count in (LENGTH, LENGTH - 1, LENGTH - 2):
        tokens, stats = decode(target, copy, k, count)
        assert tokens == wanted[:count]
        assert stats.acceptance_rate == 1
        assert stats.target_passes == math.ceil(count / (k + 1))
        assert stats.draft_passes == count - stats.target_passes
        assert stats.histogram[-1] == count // (k + 1) and sum(stats.histogram[:-1]) == 0


@pytest.mark.parametrize("k", range(1, 9))
def test_a_draft_that_is_always_wrong_is_never_accepted(models, k):
    target, _, copy, wanted = models
    tokens, stats = decode(target, Contrary(copy), k)
    assert tokens == wanted
    assert stats.acceptance_rate == 0 and stats.target_passes == LENGTH
    assert stats.accepted_by_position == [0] * k


@pytest.mark.parametrize("k", [1, 4, 8])
def test_an_end_token_at_any_position_of_the_window(models, k):
    """Every decoded token in turn ends the output; with the copy as the draft it falls on each place of a window."""
    target, draft, copy, wanted = models
    for end in wanted[:10]:
        first = wanted.index(end) + 1
        target.eos_ids = (end, 257)
        for other in (None, draft, copy):
            tokens, stats = decode(target, other, k)
            assert tokens == wanted[:first] and stats.stop == "eos"
            if other is copy:
                assert stats.acceptance_rate in (1, None)
        assert decode(target, copy, k, ignore_eos=True)[0] == wanted
    target.eos_ids = ()


@pytest.mark.parametrize("count", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("k", [1, 2, 8, 40])
def test_exactly_as_many_tokens_as_asked_for(models, count, k):
    target, draft, copy, wanted = models
    for other in (draft, copy, None):
        tokens, stats = decode(target, other, k, count)
        assert tokens == wanted[:count]
        assert stats.stop == "length" and stats.target_passes <= count
        assert stats.draft_passes <= max(0, count - 1) * k


def test_a_prompt_of_one_token(models):
    target, draft, copy, _ = models
    one = PROMPT[:1]
    plain, _ = decode(target, None, 0, 8, one)
    for other in (draft, copy):
        assert decode(target, other, 3, 8, one)[0] == plain


@pytest.mark.parametrize("rows", [(258, 320), (320, 258), (320, 300)])
def test_heads_that_are_padded_differently(tmp_path, rows):
    """Rows from 258 on name no token; random weights would choose one of them soon."""
    target, reference = tiny_model(tmp_path / "target", vocabulary=rows[0])
    draft, _ = tiny_model(tmp_path / "draft", vocabulary=rows[1], seed=1)
    copy, _ = tiny_model(tmp_path / "copy", vocabulary=rows[0])
    wanted = decode_greedily(reference, PROMPT, LENGTH, vocabulary=258)
    if rows[0] > 258:
        assert wanted != decode_greedily(reference, PROMPT, LENGTH)
    for other, k in ((None, 0), (draft, 3), (copy, 3)):
        for model in (target, other):
            if model is not None:
                model.rollback(0)
        tokens, stats = generate(target, other, Ids(258), PROMPT, k=k, max_new_tokens=LENGTH)
        assert tokens.tolist() == wanted
        assert other is not copy or stats.acceptance_rate == 1


class Ids:
    """A tokenizer as far as its ids go."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def get_vocab(self):
        return {str(i): i for i in range(self.count)}


@pytest.mark.parametrize(
    "prompt, words",
    [
        (torch.tensor([[1, 2], [3, 4]]), "one sequence"),
        (torch.tensor([], dtype=torch.int64), "empty"),
        ("  ", "empty"),
        ("Hello", "needs its tokenizer"),
        ("\ud800abc", "surrogate"),
        (torch.tensor([1.0]), "string or a 1-D int64 tensor"),
        (torch.tensor([1], dtype=torch.int32), r"not a tensor of torch\.int32"),
        ([1, 2], "string or a 1-D int64 tensor"),
        (torch.tensor([1, 258]), "outside of 0..257"),
        (torch.tensor([-1]), "outside of 0..257"),
        (torch.arange(257) % 7, "257 tokens"),
    ],
)
def test_prompts_that_cannot_be_decoded(models, prompt, words):
    with pytest.raises(PromptError, match=words):
        generate(models[0], models[1], None, prompt)


@pytest.mark.parametrize(
    "setting",
    [
        {"k": -1}, {"k": 1.5}, {"k": True}, {"max_new_tokens": -1}, {"temperature": -0.1}, {"temperature": math.nan},
        {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.0}, {"seed": -1}, {"seed": 1.5}, {"verification": "tokens"},
        {"schedule": "clever"}, {"stop": "a"}, {"stop": 5}, {"stop": None}, {"forbidden": 5}, {"forbidden": None},
        {"logit_bias": [1]}, {"logit_bias": None}, {"draft_settings": {}}, {"forbidden": (258,)},
        {"logit_bias": {300: 1.0}},
        {"repetition_penalty": 0.0}, {"presence_penalty": math.inf}, {"temprature": 1.0},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(models, setting):
    target, draft, _, _ = models
    target.rollback(0)
    with pytest.raises(SettingsError, match=next(iter(setting))):
        generate(target, draft, None, PROMPT, **setting)
    assert target.length == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_the_target_that_are_no_numbers_are_an_error(models, temperature, monkeypatch):
    target, draft, _, _ = models
    target.rollback(0)
    run = target._run

    def broken(ids, start, keep):
        logits = run(ids, start, keep)
        if start + len(ids) > len(PROMPT) + 4:
            logits[-1, 7] = math.nan
        return logits

    monkeypatch.setattr(target, "_run", broken)
    with pytest.raises(ModelError, match="NaN"):
        generate(target, draft, None, PROMPT, k=3, temperature=temperature)
    monkeypatch.undo()
    tokens, _ = generate(target, draft, None, PROMPT, k=3, max_new_tokens=LENGTH)
    assert tokens.tolist() == models[3]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_the_draft_that_are_no_numbers_leave_it_to_the_target(models, temperature, monkeypatch):
    target, draft, _, wanted = models
    monkeypatch.setattr(draft, "_run", lambda ids, start, keep: torch.full((keep, 258), math.nan))
    tokens, stats = decode(target, draft, 3, temperature=temperature)
    assert stats.draft_failures == LENGTH - 1 and stats.accepted == 0
    assert f"no numbers in {LENGTH - 1} steps" in stats.summary()
    if temperature == 0:
        assert tokens == wanted


def test_the_same_seed_gives_the_same_tokens(models):
    target, draft, _, _ = models
    first, _ = decode(target, draft, 4, temperature=1.0, seed=5)
    torch.manual_seed(1)
    torch.rand(3)
    assert decode(target, draft, 4, temperature=1.0, seed=5)[0] == first
    assert decode(target, draft, 4, temperature=1.0, seed=6)[0] != first
    generator = torch.Generator().manual_seed(5)
    assert decode(target, draft, 4, temperature=1.0, seed=generator)[0] == first
    assert decode(target, draft, 4, temperature=1.0, seed=generator)[0] != first


def test_sample_and_match_gives_plain_decodings_tokens_for_any_draft_and_k(models):
    target, draft, copy, _ = models
    plain, _ = decode(target, None, 0, temperature=0.7, top_k=20, seed=3)
    for other in (draft, copy):
        for k in (1, 4):
            assert decode(target, other, k, temperature=0.7, top_k=20, seed=3, verification="match")[0] == plain


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_continuing_where_a_call_ended(models, temperature):
    """With width-invariant passes, what the first call has cached is what the second one's prefill would cache."""
    target, draft, _, _ = models
    if not make_exact(target):
        target.exact = True  # in float32 no token changes for it
    settings = {"k": 3, "temperature": temperature, "max_new_tokens": 9, "seed": 2}
    first, _ = decode(target, draft, 3, 9, temperature=temperature, seed=2)
    longer = torch.cat((PROMPT, torch.tensor([*first, 65, 66])))
    fresh, _ = decode(target, draft, 3, 9, longer, temperature=temperature, seed=2)
    decode(target, draft, 3, 9, temperature=temperature, seed=2)
    tokens, stats = generate(target, draft, None, longer, **settings)
    assert tokens.tolist() == fresh
    assert stats.reused_tokens == len(PROMPT) + len(first) - 1


def test_a_model_may_be_used_between_calls(models):
    """Its own `forward` and a call of `generate` share cache and buffers, in whatever order."""
    target, draft, _, wanted = models
    target.rollback(0)
    target.forward(PROMPT)
    assert decode(target, draft, 2)[0] == wanted
    target.forward(torch.tensor([1, 2, 3]))
    assert decode(target, draft, 2)[0] == wanted


def test_a_draft_that_is_none_is_refused(models):
    with pytest.raises(SettingsError, match="a drafter or None, not str"):
        generate(models[0], "models/draft", None, PROMPT)


def test_a_budget_beyond_the_context_takes_no_memory(models):
    tokens, stats = generate(models[0], None, None, torch.arange(250) % 200, max_new_tokens=10**12)
    assert len(tokens) == 7 and stats.stop == "context"


def test_what_is_no_target_is_named(models):
    with pytest.raises(SettingsError, match="target must be a model of load_models, not NoneType"):
        generate(None, models[1], None, PROMPT)


def test_help_shows_what_the_package_offers():
    import pydoc

    import src.speculative

    text = pydoc.plain(pydoc.render_doc(src.speculative))
    assert all(name in text for name in src.speculative.__all__)
    assert "max_new_tokens: int = 96" in text
