"""With the real pair, in float32: speculative decoding gives plain decoding's tokens, one by one."""

from pathlib import Path

import pytest
import torch

from src.pipeline.prompts import load_prompts
from src.speculative import generate
from src.speculative.decoding import encode

TOKENS = 16
PROMPTS = load_prompts(Path(__file__).parent.parent / "prompts/default.jsonl")[:3]
pytestmark = pytest.mark.models


@pytest.fixture(scope="module")
def plain(real_pair):
    """What the target decodes without a draft, by prompt."""
    target, _, tok = real_pair
    return {
        prompt.id: generate(target, None, tok, prompt.prompt, max_new_tokens=TOKENS, chat=True)[0] for prompt in PROMPTS
    }


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.id)
def test_the_draft_changes_no_token(real_pair, plain, prompt, k):
    target, draft, tok = real_pair
    tokens, stats = generate(target, draft, tok, prompt.prompt, k=k, max_new_tokens=TOKENS, chat=True)
    assert tokens.tolist() == plain[prompt.id].tolist()
    assert stats.proposed > 0


@torch.inference_mode()
def test_plain_decoding_is_what_transformers_gives(real_pair, plain):
    from transformers import AutoModelForCausalLM

    from src.pipeline.fetch import MODELS
    from src.pipeline.params import load_params

    tok = real_pair[2]
    reference = AutoModelForCausalLM.from_pretrained(MODELS / load_params().targets[0], dtype=torch.float32)
    ids = encode(tok, PROMPTS[0].prompt, chat=True)
    wanted = plain[PROMPTS[0].id]
    for count in (0, 7, TOKENS - 1):
        seen = torch.cat((ids, wanted[:count]))
        assert int(reference(seen[None], use_cache=False).logits[0, -1].argmax()) == wanted[count]
