"""A causal language model with a KV cache: feed tokens, get logits, roll back.

One rule makes everything else follow: *before a pass, feed exactly the tokens between the processed length and the
end of the sequence.* A model that was rolled back to a shorter length, or that never saw the last tokens, is then
handled alike. Worked example, k = 2, the sequence so far "a b c" with the draft at length 3 and the target at 2:

    the draft proposes "x y": it is fed "c" (length 3), then "x" (length 4); it never sees "y"
    the target is fed "c x y" (length 5) and gives three distributions
    both accepted, bonus token "z": the sequence is "a b c x y z", the target has length 5, the draft 4
    next step: the target lacks "z", the draft lacks "y z"; the rule feeds just those
    had "x" been rejected for "w": the sequence is "a b c w", both roll back to 3, both lack "w"
"""

import torch

from .errors import ModelError, PromptError


class CausalLM:
    """What decoding needs of a model. A subclass gives `_run`; toy models do no more than that.

    vocab_size: columns of the logits. context: the most positions it can hold. token_ids: None, or an int64 tensor
    (vocab_size,) that names the token of each column (a trimmed draft head). real_ids: None, or how many ids name a
    token, where the head is padded with columns beyond them. eos_ids: the tokens that end an answer.
    weight_bytes: None where it is not known, or how many bytes of weights a pass reads.
    exact: width invariance holds, that is, logits do not depend on how many tokens a pass had, bit by bit. chunk: the
    most tokens that one pass may have.
    """

    token_ids: torch.Tensor | None = None
    real_ids: int | None = None
    eos_ids: tuple[int, ...] = ()
    weight_bytes: int | None = None
    exact = False
    chunk = 512

    def __init__(self, vocab_size: int, context: int, *, device="cpu", dtype=torch.float32):
        self.vocab_size, self.context = vocab_size, context
        self.device, self.dtype = torch.device(device), dtype
        self.length = 0
        self._tokens = torch.empty(0, dtype=torch.int64, device=self.device)

    @property
    def tokens(self) -> torch.Tensor:
        """The tokens that were processed and not rolled back, int64 (length,)."""
        return self._tokens[: self.length]

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, keep: int | None = None) -> torch.Tensor:
        """Appends ids (n,) int64 to the cache; logits (keep, vocab_size) of the last `keep` of them, all if None.

        A pass of more than `chunk` tokens is run in pieces. Raises PromptError if ids are not a 1-D int64 tensor with
        at least one entry, ModelError if they do not fit into the context.
        """
        if not isinstance(ids, torch.Tensor) or ids.dtype != torch.int64 or ids.dim() != 1 or ids.numel() == 0:
            raise PromptError(f"a pass takes a 1-D int64 tensor with at least one token id, not {_shape(ids)}")
        n = ids.numel()
        if self.length + n > self.context:
            raise ModelError(
                f"{self.length} + {n} tokens do not fit into the model's context of {self.context} positions"
            )
        keep = n if keep is None else min(keep, n)
        pieces = []
        for start in range(0, n, self.chunk):
            piece = ids[start : start + self.chunk]
            size = piece.numel()
            wanted = max(0, min(size, start + size - (n - keep)))
            logits = self._run(piece, self.length, wanted)
            self._remember(piece)
            if wanted:
                pieces.append(logits)
        if not pieces:
            return torch.empty(0, self.vocab_size, dtype=self.dtype, device=self.device)
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def _remember(self, ids: torch.Tensor) -> None:
        end = self.length + ids.numel()
        if end > self._tokens.numel():
            grown = self._tokens.new_empty(max(512, 2 * end))
            grown[: self.length] = self.tokens
            self._tokens = grown
        self._tokens[self.length : end] = ids
        self.length = end

    def rollback(self, length: int) -> None:
        """Forgets everything after the first `length` tokens, in O(1). Raises ModelError if there are fewer."""
        if not 0 <= length <= self.length:
            raise ModelError(f"cannot roll back to {length}: the model has processed {self.length} tokens")
        self.length = length

    def reuse(self, ids: torch.Tensor, *, loosely: bool = False) -> int:
        """Rolls back to the longest prefix that the cache shares with ids, and returns its length.

        At most len(ids) - 1, so that a pass over what is left has a last token to give logits for. A model that is
        not width invariant would round a prefix that decoding cached unlike one that prefill caches; it starts anew,
        but for where the caller says that rounding does not matter (loosely).
        """
        if not (self.exact or loosely):
            self.rollback(0)
            return 0
        common = min(self.length, len(ids) - 1)
        differs = (self._tokens[:common] != ids[:common]).nonzero()
        self.rollback(int(differs[0]) if len(differs) else common)
        return self.length

    def _run(self, ids: torch.Tensor, start: int, keep: int) -> torch.Tensor:
        """Logits of the last `keep` of ids (n,) at positions start..start+n-1; keys and values go to the cache."""
        raise NotImplementedError


class FastModel(CausalLM):
    """A model of the Llama family behind the fast pass of `llama.py`."""

    def __init__(self, network, *, token_ids: torch.Tensor | None = None):
        config = network.config
        size = config.vocab_size if token_ids is None else len(token_ids)
        super().__init__(size, config.max_position_embeddings, device=network.device, dtype=network.dtype)
        self.network, self.token_ids, self.weight_bytes = network, token_ids, network.reads

    def _run(self, ids, start, keep):
        return self.network(ids, start, keep)


class TransformersModel(CausalLM):
    """Any other causal LM, through transformers' own forward and its DynamicCache: slower, and correct."""

    def __init__(self, model):
        config = model.config.get_text_config()
        super().__init__(config.vocab_size, config.max_position_embeddings, device=model.device, dtype=model.dtype)
        self.model, self._past, self._held = model, None, 0

    def _run(self, ids, start, keep):
        from transformers import DynamicCache

        if self._past is None:
            self._past, self._held = DynamicCache(), 0
        if start == 0:
            self._past, self._held = DynamicCache(), 0
        if self._held > start:
            self._past.crop(start - self._held)
        with torch.inference_mode():
            out = self.model(ids[None], cache=self._past, use_cache=True, logits_to_keep=max(keep, 1))
        self._held = start + len(ids)
        return out.logits[0, len(out.logits[0]) - keep :] if keep else out.logits[0, :0]


def _shape(ids) -> str:
    return f"{ids.dtype} of shape {tuple(ids.shape)}" if isinstance(ids, torch.Tensor) else type(ids).__name__
