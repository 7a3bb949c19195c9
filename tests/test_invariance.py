"""Width invariance: found where it holds, and denied where it is broken."""

import pytest
import torch
from checkpoints import save_checkpoint

from src.speculative import attention
from src.speculative.invariance import make_exact, probe
from src.speculative.llama import Llama
from src.speculative.loading import load_model

SIZES = {"hidden_size": 192, "intermediate_size": 384, "num_attention_heads": 6, "max_position_embeddings": 2048}


@pytest.fixture
def model(tmp_path):
    return load_model(save_checkpoint(tmp_path / "model", **SIZES), dtype="float32")


def windows(model, ids: torch.Tensor, width: int, start: int = 0) -> torch.Tensor:
    """Logits of all ids from `start` on, fed in windows of that width after the others, which may be cached."""
    model.reuse(ids[: start + 1])
    if len(unseen := ids[model.length : start]):
        model.forward(unseen, keep=0)
    return torch.cat([model.forward(piece) for piece in ids[start:].split(width)])


def test_where_the_probe_says_yes_every_width_gives_the_same_bits(model):
    assert make_exact(model), "this processor has no invariant pass in float32"
    ids = torch.randint(258, (300,), generator=torch.Generator().manual_seed(1))
    single = windows(model, ids, 1)
    for width in range(2, 10):
        assert torch.equal(windows(model, ids, width), single), width


def test_a_plain_attention_in_its_place_is_noticed(model, monkeypatch):
    def broken(start, n, device, dtype):
        """Every query's result hangs on how many there are: what a kernel that tiles queries does to the last bits."""
        attend = attention.plain(start, n, device, dtype)
        return lambda q, k, v: attend(q, k, v) * (1 + n * 2.0**-20)

    monkeypatch.setattr(Llama, "forms", tuple(attention.FORMS))
    for name in attention.FORMS:
        monkeypatch.setitem(attention.FORMS, name, broken)
    assert probe(model.network) is None
    assert not make_exact(model)
    assert not model.exact


def test_plain_attention_passes_no_probe_unless_it_is_invariant(model, monkeypatch):
    monkeypatch.setattr(Llama, "forms", tuple(attention.FORMS))
    for name in attention.FORMS:
        monkeypatch.setitem(attention.FORMS, name, attention.plain)
    found = probe(model.network)
    model.network.attention, model.network.widths = found or ("plain", ())
    ids = torch.randint(258, (120,), generator=torch.Generator().manual_seed(1))
    same = all(torch.equal(windows(model, ids, w, 40), windows(model, ids, 1, 40)) for w in range(2, 10))
    assert same == (found is not None)


def test_a_product_that_sums_by_its_rows_is_noticed(model, monkeypatch):
    head = model.network.head
    model.network.head = lambda x: head(x) + len(x) * 1e-6
    assert probe(model.network) is None


def test_widths_that_leave_rows_over_are_padded_to_the_next_that_leaves_none(model):
    """A product that takes five rows at once, and sums otherwise where one or two are left."""
    head = model.network.head
    model.network.head = lambda x: head(x) + (len(x) % 5 in (1, 2)) * 1e-3
    assert make_exact(model)
    widths = model.network.widths
    assert widths and not [width for width in widths if width % 5 in (1, 2)]
    ids = torch.randint(258, (100,), generator=torch.Generator().manual_seed(1))
    single = windows(model, ids, 1)
    for width in range(2, 18):
        assert torch.equal(windows(model, ids, width), single), width


def test_the_probe_leaves_the_model_as_it_was(model):
    ids = torch.arange(5, 40)
    before = windows(model, ids, 7)
    form = model.network.attention, model.network.widths
    probe(model.network)
    assert (model.network.attention, model.network.widths) == form
    assert torch.equal(windows(model, ids, 7), before)


def real_ids(directory, n: int) -> torch.Tensor:
    """Text of the model's own: what it says after each prompt of the default set."""
    from src.pipeline.prompts import load_prompts
    from src.speculative.loading import load_tokenizer

    tok = load_tokenizer(directory)
    text = " ".join(prompt.prompt for prompt in load_prompts("prompts/default.jsonl"))
    ids = tok(text, return_tensors="pt").input_ids[0]
    return ids.repeat(-(-n // len(ids)))[:n]


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_real_model_gives_the_same_bits_at_every_width(real, dtype):
    directory = real("smollm2-135m")
    model = load_model(directory, dtype=dtype)
    assert make_exact(model), f"this processor has no invariant pass in {dtype}"
    ids = real_ids(directory, 1009)
    with torch.inference_mode():
        # 200 positions from the second on, and some at contexts across the cache's blocks up to 1,000.
        for start, end in ((1, 201), (440, 460), (990, 1009)):
            single = windows(model, ids[:end], 1, start)
            for width in range(2, 10):
                assert torch.equal(windows(model, ids[:end], width, start), single), (width, start)
