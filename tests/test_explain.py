"""What is said of made-up machines whose laws are known: the sentences follow the data, also against the folklore."""

import pytest

from src.pipeline.explain import cells_by_pair, fastest, notes
from src.pipeline.params import load_params
from src.pipeline.report import collect
from src.speculative import theory
from tests.made_up import v, write_results


@pytest.fixture
def summary(tmp_path, monkeypatch):
    """A function from drafts, name -> (α, c), to the summary of a sweep over them."""
    monkeypatch.chdir(tmp_path)

    def of(drafts, **more):
        write_results(tmp_path, drafts=drafts, **more)
        return collect(load_params())[0]

    return of


def test_a_draft_that_pays_is_recommended_with_its_figures(summary):
    found = summary({"good": (0.8, 0.1)})
    best = fastest(found.cells)
    sentence = notes(found)[0]
    assert f"k={best.k} is best here, at {best.speedup:.2f}x" in sentence
    assert f"{100 * found.cells[0].acceptance_rate:.1f}% to {100 * found.cells[-1].acceptance_rate:.1f}%" in sentence
    assert best.excludes_one and best.ci_low > 1


def test_a_draft_that_costs_more_than_it_gives_is_advised_against(summary):
    found = summary({"bad": (0.3, 0.9)})
    assert all(cell.excludes_one and cell.ci_high < 1 for cell in found.cells)
    assert "do not use this draft here" in notes(found)[0]
    assert "do not use a draft here" in notes(found)[1]


def test_an_interval_around_one_is_no_clear_gain(summary):
    alpha = theory.break_even_alpha(1, 0.5, [v(rows) for rows in range(1, 10)])
    found = summary({"even": (alpha, 0.5)}, ks=(1,), noise=0.05, seed=2)
    assert not found.cells[0].excludes_one
    assert "no clear gain" in notes(found)[0]


def test_the_cheaper_draft_is_faster_unless_it_is_accepted_less(summary):
    assert any(
        "Speedup follows the cost ratio here" in note for note in notes(summary({"a": (0.8, 0.1), "b": (0.8, 0.5)}))
    )
    contrary = notes(summary({"a": (0.1, 0.1), "b": (0.95, 0.2)}))
    assert any("does not follow the cost ratio alone" in note for note in contrary)


def test_a_larger_k_is_better_only_where_the_data_say_so(summary):
    assert any("A larger k is not better here" in note for note in notes(summary({"a": (0.6, 0.3)})))
    assert any(
        "The largest k that was tried is the best here" in note
        for note in notes(summary({"a": (0.99, 0.01)}, ks=(1, 3)))
    )
    both = notes(summary({"a": (0.6, 0.3), "b": (0.99, 0.01)}, ks=(1, 3)))
    assert any("A larger k is not always better" in note for note in both)


def test_a_target_is_advised_against_drafts_only_if_none_pays(summary):
    assert not any(
        "do not use a draft here" in note for note in notes(summary({"bad": (0.3, 0.9), "good": (0.8, 0.1)}))
    )


def test_verification_grows_as_measured(summary):
    found = summary({"good": (0.8, 0.1)})
    of = found.costs["target"]
    assert f"the verifying pass goes from {of.v[1]:.2f} to {of.v[6]:.2f}" in notes(found)[0]
    assert f"{of.over_bound:.1f} times what reading" in notes(found)[1]


def test_one_pair_with_one_k_teaches_no_lesson(summary):
    found = notes(summary({"a": (0.6, 0.3)}, ks=(2,)))
    assert len(found) == 2, "the pair, and what the target's passes cost"


def test_predictions_meet_measurements_where_the_laws_hold(summary):
    """Without noise, what is left of the residual is the window that the token budget cuts, and nothing else."""
    found = summary({"a": (0.7, 0.2), "b": (0.5, 0.4)}, noise=0.0)
    for cell in found.cells:
        assert cell.predicted == pytest.approx(cell.speedup / (1 + cell.residual))
        per_pass = 1 + sum(cell.acceptance_by_position)
        assert cell.predicted == pytest.approx(cell.speedup * per_pass / cell.mean_accepted_length, rel=1e-3)
    assert [len(cells) for cells in cells_by_pair(found)] == [4, 4]


def test_categories_are_predicted_from_their_own_acceptance(summary):
    found = summary({"a": (0.7, 0.2)}, noise=0.0)
    for cell in found.cells:
        assert set(cell.categories) == {"chat", "code", "math", "translation", "summarization", "extraction"}
        by_rate = sorted(cell.categories.values(), key=lambda part: part.acceptance_rate)
        predictions = [part.predicted for part in by_rate]
        assert predictions == pytest.approx(sorted(predictions)), "more is accepted, more is predicted"
