"""transformers' own generation, set up to do the very work that ours does: plain, and assisted by the same draft."""

from src.pipeline.pair import MODELS
from src.pipeline.params import Params


def open_rivals(params: Params, target: str, draft: str | None):
    """(target, draft): transformers' models of the same weights, in the same dtype and on the same device."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()

    def load(slug):
        dtype = getattr(torch, params.dtype)
        model = AutoModelForCausalLM.from_pretrained(MODELS / slug, dtype=dtype, local_files_only=True)
        return model.to(params.device).eval()

    return load(target), load(draft) if draft else None


def generate(rivals, ids, k: int, tokens: int):
    """(new tokens, seconds) after the prompt `ids`, 1-D int64, prefill included; k=0 is plain, greedy both.

    Always `tokens` tokens. With a draft: a constant number of assistant tokens, and no confidence threshold.
    """
    import torch
    from transformers import GenerationConfig

    from src.speculative.stats import now

    target, draft = rivals
    config = GenerationConfig(
        do_sample=False, max_new_tokens=tokens, eos_token_id=None, pad_token_id=0, use_cache=True,
    )  # fmt: skip
    assisted = {}
    if k:
        # Read from the assistant: these three make its windows what ours are.
        draft.generation_config.num_assistant_tokens = k
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        draft.generation_config.eos_token_id = None
        assisted["assistant_model"] = draft
    batch = ids[None].to(target.device)
    mask = torch.ones_like(batch)
    begun = now(target.device)
    with torch.inference_mode():
        out = target.generate(batch, attention_mask=mask, generation_config=config, **assisted)
    spent = now(target.device) - begun
    return out[0, len(ids) :].cpu(), spent
