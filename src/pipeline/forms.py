"""What width invariance costs: passes of a target with each form of the attention, and which forms are invariant."""

import random
from statistics import median
from typing import Annotated

import typer

from src.pipeline.console import progress, say, stage
from src.pipeline.pair import open_pair
from src.pipeline.params import ParamsError, demand_known, load_params
from src.pipeline.table import markdown

WIDTHS = (1, 2, 3, 5, 9)
ROUNDS = 15


def measure(model, context: int) -> dict[tuple[str, tuple], dict[int, float]]:
    """Median seconds by form (attention, widths) and width, after `context` tokens, in interleaved rounds."""
    import torch

    from src.speculative.stats import now

    network, tokens = model.network, model.network.config.vocab_size
    ids = torch.randint(tokens, (context + max(WIDTHS),), generator=torch.Generator().manual_seed(0)).to(model.device)
    names = ("plain", *network.forms)
    forms = [(name, widths) for widths in sorted({(), network.widths}) for name in names]
    seconds: dict = {form: {width: [] for width in WIDTHS} for form in forms}
    jobs = [(form, width) for form in forms for width in WIDTHS]
    with torch.inference_mode():
        model.forward(ids[:context], keep=0)
        for _ in progress(range(ROUNDS), "passes"):
            random.Random(0).shuffle(jobs)
            for form, width in jobs:
                network.attention, network.widths = form
                begun = now(model.device)
                model.forward(ids[context : context + width])
                seconds[form][width].append(now(model.device) - begun)
                model.rollback(context)
    return {form: {width: median(found) for width, found in row.items()} for form, row in seconds.items()}


def forms(
    target: Annotated[str, typer.Argument(help="a name of the catalogue `models` in params.yaml")],
    context: Annotated[int, typer.Option(min=1, help="tokens in the cache before each pass")] = 200,
) -> None:
    """Time TARGET's passes with each form of the attention, and say which give every position the same bits.

    A pass is exact if logits do not depend on how many tokens it has. `rows` says to which numbers of rows passes are
    padded; times are relative to the plain form's pass over one token. "program" is "fused" with all layers compiled
    into one program, so that it saves more than attention. Prints a table, writes nothing, and takes
    seconds. Example: python -m src.pipeline.forms smollm2-135m --context 400
    """
    params = load_params()
    demand_known(params, "models", target)
    model, _, _ = open_pair(params.model_copy(update={"exact": True}), target)
    from src.speculative.invariance import invariant
    from src.speculative.models import FastModel

    if not isinstance(model, FastModel):
        raise ParamsError(f"params.yaml: key 'models.{target}': runs through transformers, which has one form alone")
    chosen = (model.network.attention, model.network.widths) if model.exact else None
    found = measure(model, context)
    unit = found["plain", ()][1]
    rows = [
        [name, _ranges(widths) or "any", *(f"{found[name, widths][width] / unit:.2f}" for width in WIDTHS),
         ("yes" if invariant(model.network, name, widths) else "no") + (", used" if (name, widths) == chosen else "")]
        for name, widths in found
    ]  # fmt: skip
    say(f"{target}, {params.device}, {params.dtype}, {params.threads} threads, {context} tokens of context; "
        f"1.00 is {1000 * unit:.1f} ms\n")  # fmt: skip
    head = ["attention", "rows", *(f"{width} token{'s' * (width > 1)}" for width in WIDTHS), "exact"]
    say(markdown(head, rows, right=range(1, 2 + len(WIDTHS))))


def _ranges(numbers: tuple[int, ...]) -> str:
    """Ascending numbers in words; (3, 4, 5, 8) are "3 to 5, 8"."""
    ends = [n for n in numbers if n + 1 not in numbers]
    begins = [n for n in numbers if n - 1 not in numbers]
    return ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in zip(begins, ends, strict=True))


app = stage(forms)

if __name__ == "__main__":
    app()
