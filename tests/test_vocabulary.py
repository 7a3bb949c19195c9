"""Two tokenizers compared id by id, and heads padded as Qwen2.5's are: 151936 and 152064 rows, 151665 real ids."""

import pytest
import torch
from checkpoints import save_checkpoint

from src.speculative import generate, load_models, reconcile
from src.speculative.errors import ModelError, PromptError
from src.speculative.vocabulary import count_ids

REAL, SMALL, LARGE = 151665, 151936, 152064
PROMPT = torch.tensor([5, 151643, 77, 151664])
pytestmark = pytest.mark.usefixtures("one_thread")


class Names:
    """A tokenizer as far as its ids go."""

    def __init__(self, *tokens, **more):
        self.vocabulary = {token: i for i, token in enumerate(tokens)} | more

    def __len__(self):
        return len(self.vocabulary)

    def get_vocab(self):
        return self.vocabulary


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Tiny random Qwen2 checkpoints of both true sizes; the rows that name no token would win if anybody looked."""
    from safetensors.torch import load_file, save_file
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(REAL - 22)}, unk_token="t0"))
    tokenizer.add_special_tokens(["<|endoftext|>", *(f"<|{i}|>" for i in range(21))])
    folders = {}
    for rows, seed in ((SMALL, 1), (LARGE, 2)):
        folder = save_checkpoint(
            tmp_path_factory.mktemp("qwen"), "qwen2", seed=seed, vocabulary=rows, hidden_size=8, intermediate_size=16,
            num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=1,
        )  # fmt: skip
        weights = load_file(folder / "model.safetensors")
        weights["model.embed_tokens.weight"][REAL:] *= 50
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        for file in folder.glob("token*"):
            file.unlink()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
        folders[rows] = folder
    return folders


@pytest.mark.parametrize("sizes", [(SMALL, LARGE), (LARGE, SMALL)])
def test_padded_heads_of_the_true_sizes(checkpoints, sizes):
    target, draft, tok = load_models(*(checkpoints[size] for size in sizes), dtype="float32")
    assert (target.vocab_size, draft.vocab_size, len(tok)) == (*sizes, REAL)
    assert target.forward(PROMPT)[-1].argmax() >= REAL, "the padding is not tempting, so that nothing is shown"
    target.rollback(0)
    vocabulary = reconcile(tok, tok, *sizes)
    assert (vocabulary.size, vocabulary.draft_size) == (REAL, REAL)
    assert (vocabulary.target_padding, vocabulary.draft_padding) == (sizes[0] - REAL, sizes[1] - REAL)
    for settings in ({}, {"temperature": 1.0, "verification": "match"}, {"temperature": 0.7, "top_p": 0.9}):
        plain, _ = generate(target, None, tok, PROMPT, max_new_tokens=12, ignore_eos=True, **settings)
        tokens, _ = generate(target, draft, tok, PROMPT, max_new_tokens=12, ignore_eos=True, **settings)
        assert max(plain.tolist() + tokens.tolist()) < REAL
        if "top_p" not in settings:
            assert tokens.tolist() == plain.tolist()
    with pytest.raises(PromptError, match=f"outside of 0..{REAL - 1}"):
        generate(target, draft, tok, torch.tensor([REAL]))


def test_what_is_told_of_two_vocabularies():
    found = reconcile(Names("a", "b", "c", added=3), Names("a", "b", "c", other=5), 8, 6)
    assert found.to_dict() == {
        "size": 4, "draft_size": 6, "target_padding": 4, "draft_padding": 0, "only_target": [3], "only_draft": [5],
    }  # fmt: skip
    assert found.summary() == (
        "4 tokens, padded by 4 rows in the target and 0 in the draft; "
        "1 ids of the target alone, from 3; 1 ids of the draft alone, from 5"
    )
    assert reconcile(Names("a"), Names("a")).summary() == "1 tokens, padded by 0 rows in the target and 0 in the draft"


def test_a_head_smaller_than_its_tokenizer():
    assert reconcile(Names("a", "b", "c"), Names("a", "b", "c"), 2, 2).size == 2


def test_the_first_real_difference_is_named():
    with pytest.raises(ModelError, match="id 1 is 'b' in the target's and 'x' in the draft's"):
        reconcile(Names("a", "b", "c"), Names("a", "x", "y"))
    with pytest.raises(ModelError, match="share no id"):
        reconcile(Names("a"), Names(b=7))


def test_ids_are_counted_by_the_largest():
    tok = Names("a", "b", far=9)
    assert count_ids(tok) == 10
    tok.vocabulary["farther"] = 12
    assert count_ids(tok) == 13
