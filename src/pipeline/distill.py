"""Stage `distill`: train a small draft on what its target writes, and put its layers into results/distill/.

Three steps, each of which goes on where it was interrupted: the target writes conversations, the draft's layers learn
from them, and what came out is measured on conversations kept apart.
"""

import os
import sys
import time

from src.pipeline.console import say, stage
from src.pipeline.fetch import LAYERS, MODELS, obtain
from src.pipeline.files import Record, write_json, write_text
from src.pipeline.params import ParamsError, load_params

# A training step frees and takes the same hundreds of megabytes again and again. glibc gives them back to the kernel,
# which clears every page anew: half of the time in all, unless it was told not to before the process began.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 34),
}
CURVE = ("minutes", "tokens", "train_loss", "loss", "agreement", "acceptance", "tau_1", "tau_2", "tau_3", "tau_4")


class Trained(Record):
    """What was trained, and how well it does on conversations that it never saw.

    attention, units: the target's layers that the draft's attention and gated units began as. written: tokens of data,
    in so many conversations. trained: tokens of training, repetitions included; minutes: of training. held_out: the
    figures of src/distill/measure.py for the stored 8-bit layers and a head of draft_vocab ids.
    """

    of: str
    attention: list[int]
    units: list[int]
    seed: int
    draft_vocab: int
    written: int
    conversations: int
    trained: int
    minutes: float
    held_out_conversations: int
    held_out: dict


def distill() -> None:
    """Train the draft that the block `distill` of params.yaml describes, and store its layers in results/distill/.

    The target first writes `tokens` tokens of conversations; then a draft of `layers` layers learns from them for
    `minutes` minutes. Ctrl-C is safe at any time: the same command goes on from there. The working files in
    models/.distill/ can be deleted afterwards. For another target set `of` and run: python -m src.pipeline.distill
    """
    params = load_params()
    chosen = params.distill
    if chosen.of not in params.models:
        raise ParamsError(
            f"params.yaml: key 'distill.of': {chosen.of!r} is not in the catalogue `models`; "
            f"allowed: {', '.join(params.models)}"
        )
    obtain(params, chosen.of)
    import torch

    torch.set_num_threads(params.threads)
    from src.distill.course import Course

    course = Course(chosen, MODELS / chosen.of, MODELS / ".distill" / chosen.of)
    try:
        written = _write(course, chosen.tokens)
        state = course.train(chosen.minutes, lambda line: _say_line(line, chosen.minutes))
    except KeyboardInterrupt:
        say(f"the working files are in {course.folder}")
        raise
    held, *taught = course.conversations()
    record = Trained(
        of=chosen.of,
        attention=state["taken"][0],
        units=state["taken"][1],
        seed=chosen.seed,
        draft_vocab=len(course.vocabulary),
        written=written,
        conversations=sum(taught),
        trained=state["tokens"],
        minutes=round(state["seconds"] / 60, 1),
        held_out_conversations=held,
        held_out=course.export(LAYERS),
    )
    write_text(LAYERS / "curve.csv", _csv(state["curve"]))
    write_json(LAYERS / "trained.json", record)
    say(f"{LAYERS}: {_figures(record.held_out)}")


def _write(course, tokens: int) -> int:
    """Has the target write until there are `tokens` tokens, and says how it goes on; returns how many there are."""
    began, before, count = time.monotonic(), None, 0
    for count in course.write(tokens):
        before = count if before is None else before
        gone = (time.monotonic() - began) / 60
        left = max(0, tokens - count) * gone / (count - before) if count > before else None
        times = "" if left is None else f"; {gone:.0f} minutes gone, about {left:.0f} to go"
        say(f"the target wrote {count:,} of {tokens:,} tokens{times}")
    return count


def _say_line(line: dict, minutes: float) -> None:
    """A line of the curve, with the training time that is gone and left."""
    gone = line["minutes"]
    left = max(0.0, minutes - gone)
    say(f"{gone:.1f} minutes of training gone, {left:.1f} to go; {line['tokens']:,} tokens; {_figures(line)}")


def _figures(line: dict) -> str:
    tau = ", ".join(f"{value} at k={k}" for k, value in line["tau"].items() if k in "124")
    return f"held-out agreement {line['agreement']:.1%}, acceptance {line['acceptance']:.1%}, tau {tau}"


def _csv(curve: list[dict]) -> str:
    rows = [line | {f"tau_{k}": value for k, value in line["tau"].items()} for line in curve]
    return "\n".join([",".join(CURVE), *(",".join(_cell(row[name]) for name in CURVE) for row in rows)]) + "\n"


def _cell(value) -> str:
    return "" if value is None else str(value)


app = stage(distill)

if __name__ == "__main__":
    if sys.platform == "linux" and not KEEP_MEMORY.keys() <= os.environ.keys():
        os.execve(
            sys.executable, [sys.executable, "-m", "src.pipeline.distill", *sys.argv[1:]], os.environ | KEEP_MEMORY
        )
    app()
