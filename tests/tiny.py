"""Tiny random checkpoints as decoding's models, and plain decoding by transformers without a cache, to compare with."""

import torch
from checkpoints import save_checkpoint

from src.speculative.loading import load_model
from src.speculative.models import CausalLM

PROMPT = torch.tensor([72, 105, 33, 5, 200])


def tiny_model(folder, family="llama", **options):
    """(model, reference): our pass over a random checkpoint, and transformers' model of the same weights."""
    from transformers import AutoModelForCausalLM

    directory = save_checkpoint(folder, family, **options)
    model = load_model(directory, dtype="float32")
    model.eos_ids = ()
    return model, AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@torch.inference_mode()
def all_logits(reference, ids):
    """Logits (n, vocabulary) of every position, by one pass without a cache."""
    return reference(ids[None], use_cache=False).logits[0]


def decode_greedily(reference, ids, count, vocabulary=None):
    """The next `count` tokens, each by a whole pass over everything before it."""
    new = []
    for _ in range(count):
        seen = torch.cat((ids, torch.tensor(new, dtype=torch.int64)))
        new.append(int(all_logits(reference, seen)[-1, :vocabulary].argmax()))
    return new


class Contrary(CausalLM):
    """A draft that is always wrong: it likes most what the other model likes least."""

    def __init__(self, model):
        super().__init__(model.vocab_size, model.context)
        self.model = model

    def _run(self, ids, start, keep):
        return -self.model._run(ids, start, keep)
