"""Results are written whole or not at all, and read back as what they were."""

import errno
import json
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from src.pipeline import files
from src.pipeline.files import Record, ResultError, new_directory, read_json, write_json, write_text


class Sample(Record):
    """Any JSON."""

    value: object = None
    number: float = 0.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_the_layout_is_json_of_the_same_value_with_sorted_keys(value):
    text = files._layout(value)
    keys = []
    read = json.loads(text, object_pairs_hook=lambda pairs: keys.append([key for key, _ in pairs]) or dict(pairs))
    assert read == value
    assert all(found == sorted(found) for found in keys)


def test_a_record_comes_back_and_its_bytes_are_the_same_each_time(tmp_path):
    file = tmp_path / "deep" / "sample.json"
    write_json(file, Sample(value={"b": [1, 2.5], "a": "é"}))
    first = file.read_bytes()
    write_json(file, Sample(value={"a": "é", "b": [1, 2.5]}))
    assert file.read_bytes() == first
    assert read_json(file, Sample).value == {"a": "é", "b": [1, 2.5]}
    assert os.listdir(file.parent) == ["sample.json"]


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_is_never_written(tmp_path, number):
    with pytest.raises(ValueError):
        write_json(tmp_path / "sample.json", Sample(number=number))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no such result"),
        ("{", "invalid json"),
        ('{"schema": 1, "colour": 2}', "colour"),
        ('{"schema": "x"}', "schema"),
    ],
)
def test_a_result_that_cannot_be_read_is_named_with_the_way_to_make_it(tmp_path, text, said):
    file = tmp_path / "sample.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ResultError, match=said) as raised:
        read_json(file, Sample)
    assert str(file) in str(raised.value)
    assert "dvc repro" in str(raised.value)
    assert "\n" not in str(raised.value)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(tmp_path, monkeypatch):
    file = tmp_path / "table.md"
    write_text(file, "old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ResultError, match="no space is left on the disk"):
        write_text(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.md"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError, full])
def test_a_directory_takes_its_place_whole_or_not_at_all(tmp_path, fault):
    place = tmp_path / "model"
    with new_directory(place) as new:
        (new / "a").write_text("1")
    assert (place / "a").read_text() == "1"
    with pytest.raises((KeyboardInterrupt, RuntimeError, ResultError)), new_directory(place) as new:
        (new / "a").write_text("2")
        if fault is full:
            full()
        raise fault
    assert (place / "a").read_text() == "1"
    assert os.listdir(tmp_path) == ["model"]


def test_a_place_that_is_no_directory_is_named(tmp_path):
    (tmp_path / "results").write_text("")
    with pytest.raises(ResultError, match=r"results/table\.md: cannot be written"):
        write_text(tmp_path / "results" / "table.md", "")
    with (
        pytest.raises(ResultError, match="results/metrics: cannot be written"),
        new_directory(tmp_path / "results/metrics"),
    ):
        pass


def test_records_refuse_what_they_do_not_know():
    assert issubclass(Record, BaseModel)
    with pytest.raises(ValueError, match="colour"):
        Sample(colour="red")
