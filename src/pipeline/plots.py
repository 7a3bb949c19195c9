"""Stage `plots`: the pictures as SVG, and their data as CSV for `dvc plots`; no model is loaded."""

import csv
import io
from pathlib import Path

from src.pipeline.console import say, stage
from src.pipeline.costmodel import Costs, costs_file
from src.pipeline.explain import cells_by_pair
from src.pipeline.files import new_directory, read_json, write_text
from src.pipeline.results import SUMMARY
from src.pipeline.summary import Cell, Summary

PLOTS = Path("results/plots")


def tables(pairs: list[list[Cell]], costs: list[Costs]) -> dict[str, list[dict]]:
    """Rows of each CSV file by its path in results/plots: one file a pair, so that `dvc plots diff` compares pairs."""
    from src.pipeline.drawing import roofline_points, step_parts

    found: dict[str, list[dict]] = {}
    for cells in pairs:
        name = f"{cells[0].target}_{cells[0].draft}.csv"
        found[f"speedup/{name}"] = [
            {"k": c.k, "speedup": c.speedup, "low": c.ci_low, "high": c.ci_high, "predicted": c.predicted}
            for c in cells
        ]
        rates = cells[-1].acceptance_by_position
        found[f"acceptance/{name}"] = [{"position": at, "accepted": rate} for at, rate in enumerate(rates, 1)]
        found[f"step/{name}"] = [{"k": c.k, **step_parts(c), "tokens": c.mean_accepted_length} for c in cells]
    for record in costs:
        names = ("pass", "rows", "operations_per_byte", "operations_per_second")
        found[f"roofline/{record.target}.csv"] = [dict(zip(names, p, strict=True)) for p in roofline_points(record)]
    return found


def csv_text(rows: list[dict]) -> str:
    """CSV with a head, numbers to six digits, nothing for None."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
    return text.getvalue()


def plots() -> None:
    """Draw results/plots/*.svg and write the same figures as CSV beside them, from results/summary.json and costs.

    Four pictures: speedup over k, measured and predicted; acceptance by position; where a step's time goes; and the
    passes under the machine's roofline. `dvc plots show` and `dvc plots diff` read the CSV files. Example:
    python -m src.pipeline.plots
    """
    from src.pipeline import drawing

    summary = read_json(SUMMARY, Summary)
    costs = [read_json(costs_file(target), Costs) for target in summary.costs]
    pairs = cells_by_pair(summary)
    with new_directory(PLOTS) as folder:
        for path, rows in tables(pairs, costs).items():
            write_text(folder / path, csv_text(rows))
        drawing.save(drawing.speedup(pairs), folder / "speedup.svg")
        drawing.save(drawing.acceptance(pairs), folder / "acceptance.svg")
        drawing.save(drawing.step_time(pairs), folder / "step.svg")
        drawing.save(drawing.roofline(costs), folder / "roofline.svg")
    say(f"plots: four pictures in {PLOTS}")


app = stage(plots)

if __name__ == "__main__":
    app()
