"""Forms: a row for each form of the attention, and the one in use marked as exact."""

from workshop import after, build, refused, run

from src.pipeline import forms
from src.speculative.attention import FORMS


def test_every_form_is_timed_and_the_used_one_is_exact(tmp_path, monkeypatch):
    monkeypatch.chdir(after(tmp_path, "machine", "fetch target", "fetch draft"))
    monkeypatch.setattr(forms, "ROUNDS", 2)
    printed = run("forms", "target", "--context", 30)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines() if line.startswith("| ")]
    assert {row[0] for row in rows[1:]} == set(FORMS) - {"fused"}, "heads of eight numbers are too small for it"
    assert [row[-1] for row in rows].count("yes, used") == 1
    plain = next(row for row in rows if row[0] == "plain")
    assert plain[2] == "1.00"
    assert all(float(cell) > 0 for row in rows[1:] for cell in row[2:-1])


def test_an_unknown_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path))
    assert "holds no 'other'; allowed: target, draft" in refused("forms", "other")
