"""Bit-exact on the real target: output does not depend on k, greedy on 24 prompts of 128 tokens, nor sampled."""

import pytest
import torch

from src.pipeline.prompts import load_prompts
from src.speculative import generate
from src.speculative.decoding import encode
from src.speculative.drafters import Proposal
from src.speculative.invariance import make_exact
from src.speculative.loading import load_model, load_tokenizer

PROMPTS = load_prompts("prompts/default.jsonl")
KS = range(1, 9)


class Script:
    """Proposes what it was told will come, but for every twenty-third token, at places that shift with k.

    It costs no pass, so that many windows can be checked; acceptance of every length occurs.
    """

    def __init__(self, tokens: list[int], k: int):
        self.tokens, self.k = tokens, k
        self.passes = self.failures = self.prompt = 0

    def begin(self, prompt, vocabulary):
        self.prompt = len(prompt)

    def room(self, length):
        return self.k

    def propose(self, sequence, limit):
        at = len(sequence) - self.prompt
        told = self.tokens[at : at + limit]
        wrong = [token + ((at + i + self.k) % 23 == 0) for i, token in enumerate(told)]
        return Proposal(sequence.new_tensor(wrong), None)

    def settle(self, length):
        pass


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_greedy_output_is_the_same_for_every_k(real, dtype):
    directory = real("smollm2-135m")
    target, tok = load_model(directory, dtype=dtype), load_tokenizer(directory)
    assert make_exact(target), f"this processor has no invariant pass in {dtype}"
    torch.set_num_threads(2)
    settings = {"max_new_tokens": 128, "ignore_eos": True}
    for prompt in PROMPTS[:12]:
        for chat in (True, False):  # with the template and without: two prompts of each
            ids = encode(tok, prompt.prompt, chat)
            plain, _ = generate(target, None, tok, ids, **settings)
            for k in KS:
                script = Script(plain.tolist(), k)
                tokens, stats = generate(target, script, tok, ids, k=k, **settings)
                assert torch.equal(tokens, plain), (prompt.id, chat, k)
                assert 0 < stats.accepted < stats.proposed


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sampled_output_of_one_seed_is_the_same_for_every_k(real, dtype):
    """The target's own sample is matched, so that its probabilities, to the last bit, and the seed decide alone."""
    directory = real("smollm2-135m")
    target, tok = load_model(directory, dtype=dtype), load_tokenizer(directory)
    assert make_exact(target), f"this processor has no invariant pass in {dtype}"
    torch.set_num_threads(2)
    settings = {"max_new_tokens": 48, "ignore_eos": True, "temperature": 1.0, "verification": "match"}
    for seed, prompt in enumerate(PROMPTS[:4]):
        ids = encode(tok, prompt.prompt, True)
        plain, _ = generate(target, None, tok, ids, seed=seed, **settings)
        for k in KS:
            tokens, stats = generate(target, Script(plain.tolist(), k), tok, ids, k=k, seed=seed, **settings)
            assert torch.equal(tokens, plain), (prompt.id, k)
            assert 0 < stats.accepted < stats.proposed
