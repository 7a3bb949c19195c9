"""Outputs that end: at end tokens and at stop strings, wherever the borders of tokens and windows lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import Letters, Scripted, Toy

from src.speculative import generate, stream
from src.speculative.errors import SettingsError
from src.speculative.stopping import Stop

pytestmark = pytest.mark.usefixtures("one_thread")
PIECES = ["a", "b", "ab", "ba", "c", "abc"]
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=14)
STRINGS = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=3)


def first_end(tokens, strings, eos_ids=()):
    """How many tokens belong to the output, and why it ends, from the definition."""
    for count in range(1, len(tokens) + 1):
        text = "".join(PIECES[i] for i in tokens[:count])
        if tokens[count - 1] in eos_ids:
            return count, "eos"
        if any(string in text for string in strings):
            return count, "stop"
    return len(tokens), ""


@given(TOKENS, STRINGS, st.sets(st.integers(0, 5), max_size=1), st.lists(st.integers(1, 5), min_size=14, max_size=14))
@settings(max_examples=300, deadline=None)
def test_the_first_token_that_completes_a_string_is_the_last(tokens, strings, eos_ids, widths):
    """However the tokens are cut into windows."""
    stop, rest, kept, why = Stop(eos_ids, strings, Letters(6, PIECES)), list(tokens), 0, ""
    for width in widths:
        if not why and rest:
            count, why = stop.look(rest[:width])
            kept, rest = kept + count, rest[width:]
    assert (kept, why) == first_end(tokens, strings, eos_ids)


class Bytes:
    """A tokenizer of UTF-8 bytes: token 0 to 255, and 256 as a special token."""

    def __len__(self):
        return 257

    def get_vocab(self):
        return {str(i): i for i in range(257)}

    def decode(self, ids, skip_special_tokens=False):
        text, run = "", b""
        for i in [*map(int, ids), None]:
            if i is not None and i < 256:
                run += bytes([i])
                continue
            text, run = text + run.decode("utf-8", errors="replace"), b""
            text += "<end>" if i == 256 and not skip_special_tokens else ""
        return text


def test_a_string_that_ends_inside_a_token_or_before_half_a_character():
    tok = Letters(3, ["x.", "end.\ufffd", "y"])
    assert Stop((), ["end."], tok).look([2, 1, 0]) == (2, "stop")
    assert Stop((), ["."], tok).look([2, 0, 1]) == (2, "stop")
    assert Stop((), ["€"], Bytes()).look(list("1€2".encode())) == (4, "stop")
    assert Stop((), ["<end>"], Bytes()).look([65, 256, 66]) == (2, "stop")


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stop", ["f", "ef", "cde", "hij", ["zz", "gh"], "jkl"])
def test_every_place_in_a_window(k, stop):
    """The alphabet, decoded with a draft that knows it and with one that errs now and then."""
    alphabet, tok = list(range(26)), Letters(26)
    erring = [i if i % 4 else 25 - i for i in alphabet]
    prompt = torch.tensor([0])
    target = Scripted(26, [*alphabet[1:], 0])
    strings = [stop] if isinstance(stop, str) else stop
    wanted = min("bcdefghijklmnop".find(s) + len(s) for s in strings if s in "bcdefghijklmnop")
    for draft in (None, Scripted(26, [*alphabet[1:], 0]), Scripted(26, [*erring[1:], 0])):
        for model in (target, draft):
            if model is not None:
                model.rollback(0)
        tokens, stats = generate(target, draft, tok, prompt, k=k, max_new_tokens=15, stop=stop)
        assert tok.decode(tokens) == "bcdefghijklmnop"[:wanted]
        assert (stats.generated, stats.stop) == (wanted, "stop")
        assert target.tokens.tolist() == alphabet[:wanted]
        if draft is not None:
            assert draft.tokens.tolist() == alphabet[: draft.length]
        if draft is not None and draft.script == target.script:
            assert stats.accepted == stats.proposed


def test_stopping_at_the_same_place_with_and_without_a_draft_when_sampling():
    target, draft, tok = Toy(4, 1, context=64), Toy(4, 2, context=64), Letters(4)
    prompt = torch.tensor([1])
    common = {"temperature": 1.0, "verification": "match", "stop": ["da", "ccb"], "max_new_tokens": 40}
    for seed in range(20):
        plain, stats = generate(target, None, tok, prompt, seed=seed, **common)
        tokens, other = generate(target, draft, tok, prompt, seed=seed, k=4, **common)
        assert tokens.tolist() == plain.tolist() and stats.stop == other.stop
        text = "".join(stream(target, draft, tok, prompt, seed=seed, k=4, **common))
        assert text == tok.decode(plain)


@pytest.mark.parametrize("stop", ["", ["a", ""], [3]])
def test_stop_strings_that_make_no_sense(stop):
    with pytest.raises(SettingsError, match="stop must be a string or several"):
        generate(Toy(3, 1), None, Letters(3), torch.tensor([0]), stop=stop)
