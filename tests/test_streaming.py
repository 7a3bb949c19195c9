"""Text piece by piece: never inside a character, all of it together, and to be left at any time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stopping import Bytes
from toys import Letters, Scripted, Toy

from src.speculative import generate, stream
from src.speculative.errors import PromptError
from src.speculative.text import Pieces

pytestmark = pytest.mark.usefixtures("one_thread")
PROMPT = torch.tensor([1])


@given(st.one_of(st.text(max_size=12).map(str.encode), st.binary(max_size=24)))
@settings(max_examples=300, deadline=None)
def test_all_pieces_are_the_text(data):
    pieces = Pieces(Bytes(), special=False)
    given_out = [pieces.push(token) for token in data]
    assert "".join(given_out) + pieces.rest() == data.decode("utf-8", errors="replace")


@given(st.text(min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_no_piece_breaks_a_character(text):
    pieces = Pieces(Bytes(), special=False)
    given_out = [pieces.push(token) for token in text.encode()]
    assert [piece for piece in given_out if piece] == [c for c in text if c != "\ufffd"] or "\ufffd" in text


def test_a_word_that_is_decoded_otherwise_at_the_beginning():
    """As by tokenizers that mark the space before a word and drop the first one."""

    class Words:
        def decode(self, ids, skip_special_tokens):
            return " ".join(["zero", "one", "two", "three"][i] for i in ids)

    pieces = Pieces(Words(), special=False)
    assert [pieces.push(i) for i in (3, 1, 0)] == ["three", " one", " zero"]


@pytest.mark.parametrize("k", [0, 1, 3, 6])
def test_a_stream_is_what_generate_gives(k):
    text = "Grüße, 世界! 🦙 fin"
    script = [*text.encode(), 256]
    target, draft = Scripted(257, script, eos_ids=[256]), Scripted(257, [*script[:5], 7, *script[6:]])
    tok, prompt = Bytes(), torch.tensor([script[-1]])
    target.script = draft.script = script
    collected = []

    def collect():
        collected.append((yield from stream(target, draft, tok, prompt, k=k)))

    pieces = list(collect())
    tokens, stats = collected[0]
    assert "".join(pieces) == text and all(pieces)
    assert not any("\ufffd" in piece for piece in pieces)
    again, other = generate(target, draft, tok, prompt, k=k)
    assert tokens.tolist() == again.tolist() == script
    assert (stats.stop, stats.generated, stats.accepted) == (other.stop, len(script), other.accepted)


def test_bytes_that_make_no_character_come_at_the_end():
    target = Scripted(257, [0xE2, 0x82, 65, 0xE2])
    pieces = list(stream(target, None, Bytes(), torch.tensor([65]), max_new_tokens=4))
    assert pieces[-1] == "\ufffd" and "".join(pieces) == bytes(target.script).decode(errors="replace")


@pytest.mark.parametrize("pieces", [0, 1, 2, 5])
def test_leaving_early_leaves_both_models_usable(pieces):
    target, draft, tok = Toy(4, 1, context=64), Toy(4, 2, context=64), Letters(4)
    settings = {"k": 3, "temperature": 1.0, "max_new_tokens": 20, "seed": 4}
    wanted, _ = generate(Toy(4, 1, context=64), Toy(4, 2, context=64), tok, PROMPT, **settings)
    running = stream(target, draft, tok, PROMPT, **settings)
    for _ in range(pieces):
        next(running)
    running.close()
    said = [PROMPT.item(), *wanted.tolist()]
    assert target.tokens.tolist() == said[: target.length]
    assert draft.tokens.tolist() == said[: draft.length]
    assert generate(target, draft, tok, PROMPT, **settings)[0].tolist() == wanted.tolist()


def test_bad_arguments_raise_when_the_stream_is_asked():
    with pytest.raises(PromptError, match="empty"):
        next(stream(Toy(4, 1), None, Letters(4), ""))
