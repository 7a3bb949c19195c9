"""Stage `sweep`: the same tokens as plain decoding, counted and timed in pairs."""

from pathlib import Path

import pytest
from workshop import PROMPTS, after, attempt, build, files, refused, run

from src.pipeline import sweep as stage
from src.pipeline.files import read_json
from src.pipeline.params import load_params
from src.pipeline.prompts import load_prompts
from src.pipeline.results import BaselineTokens, CellTiming, CellTokens, cell_files


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(after(tmp_path, "machine", "fetch target", "fetch draft", "baseline target"))


def cell(k: int) -> tuple[CellTokens, CellTiming]:
    tokens, timing, _ = cell_files("target", "draft", k)
    return read_json(tokens, CellTokens), read_json(timing, CellTiming)


@pytest.mark.parametrize("k", [1, 3])
def test_tokens_are_plain_decoding_s_and_counts_add_up(k):
    run("sweep", "target", "draft", k)
    tokens, _ = cell(k)
    base = read_json("results/baseline/target.json", BaselineTokens)
    assert [row.tokens for row in tokens.prompts] == [row.tokens for row in base.prompts]
    for row in tokens.prompts:
        assert row.accepted == sum(i * n for i, n in enumerate(row.histogram)) == sum(row.accepted_by_position)
        assert row.proposed == k * sum(row.histogram) == sum(row.proposed_by_position)
        whole = sum(row.histogram)
        assert row.target_passes >= whole
        assert len(row.tokens) >= row.accepted + whole
    assert sum(row.accepted for row in tokens.prompts) > 0, "the draft must be right sometimes, or this shows little"


def test_seconds_are_kept_raw_for_each_repeat_and_apart_from_the_tokens():
    run("sweep", "target", "draft", 3)
    tokens, timing = cell(3)
    assert tokens.settings == timing.settings
    assert (timing.repeats, timing.warmup) == (2, 1)
    for row in timing.prompts:
        assert (row.generated, len(row.plain), len(row.speculative)) == (9, 2, 2)
        assert all(sample.draft < sample.target for sample in row.plain)
        assert all(min(sample.draft, sample.target) > 0 for sample in row.speculative)
        assert min(row.plain[0].prefill, row.speculative[0].prefill) > 0
    first = Path(cell_files("target", "draft", 3)[0]).read_bytes()
    run("sweep", "target", "draft", 3)
    assert Path(cell_files("target", "draft", 3)[0]).read_bytes() == first


@pytest.mark.parametrize("changed, stored", [({}, True), ({"schedule": "adaptive"}, False)])
def test_single_passes_are_timed_after_each_prompt_where_windows_are_of_k_tokens(changed, stored):
    build(Path(), **changed)
    run("sweep", "target", "draft", 3)
    passes = cell(3)[1].passes
    assert (passes is not None) == stored
    for seconds in passes.model_dump().values() if passes else ():
        assert len(seconds) == len(PROMPTS) and min(seconds) > 0


def test_plain_and_speculative_run_back_to_back_and_take_turns_in_going_first(monkeypatch):
    order, real = [], stage.decode

    def noted(params, pair, ids, k, **options):
        order.append((tuple(ids.tolist()), k))
        return real(params, pair, ids, k, **options)

    monkeypatch.setattr(stage, "decode", noted)
    run("sweep", "target", "draft", 3)
    warm, pairs = order[:2], [order[i : i + 2] for i in range(2, len(order), 2)]
    assert [k for _, k in warm] == [0, 3]
    assert len(pairs) == 2 * len(PROMPTS)
    assert all(one[0] == other[0] and {one[1], other[1]} == {0, 3} for one, other in pairs)
    plain_first = {}
    for one, _ in pairs:
        plain_first.setdefault(one[0], []).append(one[1] == 0)
    assert all(sum(firsts) == 1 for firsts in plain_first.values()), "each prompt begins once with either"
    assert sum(one[1] == 0 for one, _ in pairs) == len(pairs) / 2


def test_garbage_is_not_collected_in_a_timed_region(monkeypatch):
    import gc

    seen, real = [], stage.decode

    def noted(*arguments, **options):
        seen.append(gc.isenabled())
        return real(*arguments, **options)

    monkeypatch.setattr(stage, "decode", noted)
    run("sweep", "target", "draft", 1)
    assert seen[:2] == [True, True], "the warm-up"
    assert not any(seen[2:])
    assert gc.isenabled()


def test_an_interrupted_cell_leaves_nothing_and_the_others_alone(monkeypatch):
    run("sweep", "target", "draft", 1)
    before, calls, real = files(), [], stage.decode

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) > 6:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(stage, "decode", interrupted)
    monkeypatch.setattr("src.pipeline.console.os._exit", leave)
    result = attempt("sweep", "target", "draft", 3)
    assert result.exit_code == 130
    assert "the same command goes on from there" in result.stderr
    assert files() == before


def test_drafts_with_another_tokenizer_are_refused(tmp_path):
    from checkpoints import save_checkpoint

    other = save_checkpoint(tmp_path / "other", swapped=True)
    models = {
        name: {"source": "path", "path": str(path)} for name, path in (("target", "models/target"), ("draft", other))
    }
    build(Path(), models=models)
    run("fetch", "draft")
    sentence = refused("sweep", "target", "draft", 1)
    assert "token" in sentence
    assert not Path("results/sweep").exists()


def test_quantized_drafts_change_no_token(tmp_path):
    from checkpoints import save_checkpoint

    big = save_checkpoint(tmp_path / "big", hidden_size=64, intermediate_size=128, head_dim=16)
    models = {"target": {"source": "path", "path": str(big)}}
    models["draft"] = {"source": "quantize", "of": "target", "bits": 4, "group_size": 32}
    build(Path(), models=models, max_new_tokens=20)
    for arguments in (["fetch", "target"], ["fetch", "draft"], ["baseline", "target"], ["sweep", "target", "draft", 3]):
        run(*arguments)
    base = read_json("results/baseline/target.json", BaselineTokens)
    assert [row.tokens for row in cell(3)[0].prompts] == [row.tokens for row in base.prompts]
    assert sum(row.accepted for row in cell(3)[0].prompts) > 0


def test_a_trimmed_head_proposes_only_what_it_may_and_changes_no_token():
    import json

    from src.pipeline.pair import VOCABULARY, encode_all, open_pair

    kept = list(range(0, 258, 2))
    Path("models/draft", VOCABULARY).write_text(json.dumps(kept))
    build(Path(), models=dict(load_params().model_dump(exclude_none=True)["models"]) | {
        "draft": {"source": "distill", "of": "target", "draft_vocab": True}})  # fmt: skip
    params = load_params()
    pair = open_pair(params, "target", "draft")
    assert pair[1].token_ids.tolist() == kept
    counts, _, _ = stage.run_cell(params, load_prompts(params.prompts), pair, encode_all(
        params, load_prompts(params.prompts), pair[0], pair[2]), 3)  # fmt: skip
    base = read_json("results/baseline/target.json", BaselineTokens)
    assert [row.tokens for row in counts] == [row.tokens for row in base.prompts]


def test_a_k_below_one_is_refused():
    assert attempt("sweep", "target", "draft", 0).exit_code != 0
    assert not Path("results/sweep").exists()
