"""Whether two models speak of the same tokens: their tokenizers compared id by id.

Only ids cross from draft to target, and only the target's tokenizer ever reads or writes text, so that merges and
normalization may differ. What must agree is the token that an id stands for. Heads are often padded beyond the last
real id, each by its own amount: Qwen2.5-0.5B has 151936 rows, 7B has 152064, and real ids end at 151664 in both. Those
rows name no token. Plain and speculative decoding alike leave them out.
"""

from dataclasses import asdict, dataclass
from functools import lru_cache

from .errors import ModelError


@dataclass(frozen=True)
class Vocabulary:
    """What `reconcile` found.

    size, draft_size: the real ids of each are those below it, and its logits are cut there. target_padding,
    draft_padding: rows of each head beyond the last real id of its own tokenizer (0 where the number of rows was not
    given). only_target, only_draft: ids that just one of the two has a token for, added tokens mostly. The draft never
    gets to propose the ones that the target lacks; those that the draft lacks come from the target.
    """

    size: int
    draft_size: int
    target_padding: int
    draft_padding: int
    only_target: tuple[int, ...]
    only_draft: tuple[int, ...]

    def to_dict(self) -> dict:
        """The fields, ready for JSON."""
        return asdict(self) | {"only_target": list(self.only_target), "only_draft": list(self.only_draft)}

    def summary(self) -> str:
        """One readable line."""
        line = f"{self.size} tokens, padded by {self.target_padding} rows in the target"
        line += f" and {self.draft_padding} in the draft"
        for name, ids in (("target", self.only_target), ("draft", self.only_draft)):
            if ids:
                line += f"; {len(ids)} ids of the {name} alone, from {ids[0]}"
        return line


def reconcile(tok_target, tok_draft, target_rows: int | None = None, draft_rows: int | None = None) -> Vocabulary:
    """Compares two tokenizers of transformers id by id; target_rows, draft_rows: rows of the models' heads.

    Raises ModelError, naming the first id that stands for different tokens, if there is one.
    """
    target, draft = _tokens(tok_target), _tokens(tok_draft)
    if target != draft:
        for i in sorted(target.keys() & draft.keys()):
            if target[i] != draft[i]:
                raise ModelError(
                    f"target and draft have different tokenizers: id {i} is {target[i]!r} in the target's and "
                    f"{draft[i]!r} in the draft's; a draft must give every id the target's meaning"
                )
    if not target.keys() & draft.keys():
        raise ModelError("target and draft have different tokenizers: they share no id at all")
    size, draft_size = max(target) + 1, max(draft) + 1
    return Vocabulary(
        size=min(size, target_rows or size),
        draft_size=min(draft_size, draft_rows or draft_size),
        target_padding=max(0, (target_rows or 0) - size),
        draft_padding=max(0, (draft_rows or 0) - draft_size),
        only_target=tuple(sorted(target.keys() - draft.keys())),
        only_draft=tuple(sorted(draft.keys() - target.keys())),
    )


def count_ids(tok) -> int:
    """One more than the largest id that the tokenizer has a token for; padded rows of a head lie from there on."""
    return _count_ids(tok, len(tok))


# Listing a vocabulary takes longer than decoding a token. A tokenizer that was given more tokens has another length.
@lru_cache(maxsize=8)
def _count_ids(tok, length: int) -> int:
    return max(tok.get_vocab().values()) + 1


def _tokens(tok) -> dict[int, str]:
    return {i: token for token, i in tok.get_vocab().items()}
