"""From token ids to text, piece by piece, never broken inside a character.

A token may hold a part of a character's UTF-8 bytes, which decodes to U+FFFD until the rest has come; and some
tokenizers decode a word otherwise at the beginning of a text than after another word. So a piece is what the text of
the last tokens gained, and waits for as long as it ends with U+FFFD:

    tokens "caf", C3, A9   ->   pieces "caf", "", "é"
"""

UNFINISHED = "\ufffd"


class Pieces:
    """Takes tokens one by one and gives the text that they add; all pieces together are the text of all tokens.

    tok: anything with transformers' `decode(ids, skip_special_tokens=...)`. special: whether special tokens, such as
    the one that ends an answer, have a text.
    """

    def __init__(self, tok, *, special: bool):
        self.tok, self.special = tok, special
        self.tokens: list[int] = []
        self.told = 0  # the text of tokens[:told] was given out

    @property
    def pending(self) -> str:
        """The text of the tokens that no piece has given yet, unfinished characters included."""
        return self._decode(len(self.tokens))[len(self._decode(self.told)) :]

    def push(self, token: int) -> str:
        """The text that the token completes, perhaps none."""
        self.tokens.append(token)
        before, after = self._decode(self.told), self._decode(len(self.tokens))
        if after.endswith(UNFINISHED) or not after.startswith(before):
            return ""
        # The tokens of this piece stay, as the beginning that the next one is decoded after.
        del self.tokens[: self.told]
        self.told = len(self.tokens)
        return after[len(before) :]

    def rest(self) -> str:
        """What is left when no token follows; bytes that make no character are U+FFFD."""
        text, self.told = self.pending, len(self.tokens)
        return text

    def _decode(self, count: int) -> str:
        return self.tok.decode(self.tokens[:count], skip_special_tokens=not self.special)
