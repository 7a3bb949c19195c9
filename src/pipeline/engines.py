"""A recommended pair and k, written down for an engine that serves: its configuration, and where it differs from here.

Each text follows the engine's own documentation of the version that it names; options of other versions differ.
"""

import json
import shlex
from collections.abc import Callable
from typing import NamedTuple


class Order(NamedTuple):
    """What to serve. target, draft: names that the engine can load. k: draft tokens a step.

    vocabularies: rows of the heads of target and draft, padding included; None where they are not known.
    """

    target: str
    draft: str
    k: int
    dtype: str
    vocabularies: tuple[int, int] | None = None

    @property
    def differ(self) -> bool:
        """Whether the two heads are known to have different sizes."""
        return self.vocabularies is not None and self.vocabularies[0] != self.vocabularies[1]


def vllm(order: Order) -> tuple[str, list[str]]:
    """`vllm serve`, and its warnings."""
    config = {"method": "draft_model", "model": order.draft, "num_speculative_tokens": order.k}
    warnings = [
        "exact up to rounding: vLLM's passes round by the size of their batch, so greedy output may differ from plain "
        "decoding's at near ties; the values synthetic and fly of rejection_sample_method are lossy",
        "draft models do not work in versions up to 0.10.0, nor together with pipeline parallelism up to 0.15.0",
    ]
    if order.differ:
        config["use_heterogeneous_vocab"] = True
        warnings.append(
            f"the heads have {order.vocabularies[0]} and {order.vocabularies[1]} rows: vLLM refuses such a pair unless "
            "use_heterogeneous_vocab is set, which needs a version whose documentation names that key"
        )
    command = f"vllm serve {shlex.quote(order.target)} --dtype {order.dtype} \\\n    --speculative-config "
    return command + shlex.quote(json.dumps(config)), warnings


def sglang(order: Order) -> tuple[str, list[str]]:
    """`sglang.launch_server`, and its warnings."""
    command = (
        f"python3 -m sglang.launch_server --model {shlex.quote(order.target)} --dtype {order.dtype} \\\n"
        f"    --speculative-algorithm STANDALONE --speculative-draft-model-path {shlex.quote(order.draft)} \\\n"
        f"    --speculative-num-steps {order.k} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {order.k + 1}"
    )
    warnings = [
        "exact only with --speculative-accept-threshold-single and --speculative-accept-threshold-acc at 1.0, their "
        "defaults; rounding depends on the batch as everywhere",
        "does not work together with --enable-dp-attention",
    ]
    if order.differ:
        warnings.append(
            f"the heads have {order.vocabularies[0]} and {order.vocabularies[1]} rows: SGLang wants one vocabulary; "
            "releases before April 2026 do not check it, and a pair with other tokens gives wrong output in silence"
        )
    return command, warnings


def llama_cpp(order: Order) -> tuple[str, list[str]]:
    """`llama-server`, and its warnings."""
    command = (
        f"llama-server -m {shlex.quote(_gguf(order.target))} -md {shlex.quote(_gguf(order.draft))} \\\n"
        f"    --spec-type draft-simple --spec-draft-n-max {order.k} --spec-draft-n-min 0 --spec-draft-p-min 0.0"
    )
    warnings = [
        "both models must be GGUF files; a quantized target is another target than the one measured, so measure again",
        "a draft token is kept if the target's sampler draws the same one: the target's distribution, but above "
        "temperature 0 fewer tokens are kept than by rejection sampling",
        "builds of early 2026 and before call the options --draft-max, --draft-min and --draft-p-min, and have other "
        "defaults (16 tokens)",
    ]
    if order.differ and abs(order.vocabularies[0] - order.vocabularies[1]) > 128:
        warnings.append(
            f"the heads have {order.vocabularies[0]} and {order.vocabularies[1]} rows: llama.cpp refuses a difference "
            "of more than 128"
        )
    return command, warnings


def transformers(order: Order) -> tuple[str, list[str]]:
    """A Python program, and its warnings."""
    extra = ""
    warnings = [
        "one sequence at a time: assisted decoding takes no batches",
        "k is read from the draft's generation_config, not from generate's arguments; the default there is 20 tokens, "
        "cut short where the draft is less than 40 % sure",
    ]
    if order.differ:
        extra = "\n    tokenizer=tok, assistant_tokenizer=AutoTokenizer.from_pretrained(draft_name),"
        warnings.append(
            f"the heads have {order.vocabularies[0]} and {order.vocabularies[1]} rows, which transformers takes for "
            "two tokenizers: it then drafts through text, which is slower"
        )
    program = f'''from transformers import AutoModelForCausalLM, AutoTokenizer

target_name, draft_name = {order.target!r}, {order.draft!r}
tok = AutoTokenizer.from_pretrained(target_name)
target = AutoModelForCausalLM.from_pretrained(target_name, dtype="{order.dtype}")
draft = AutoModelForCausalLM.from_pretrained(draft_name, dtype="{order.dtype}")
draft.generation_config.num_assistant_tokens = {order.k}
draft.generation_config.num_assistant_tokens_schedule = "constant"
draft.generation_config.assistant_confidence_threshold = 0.0
inputs = tok("Why is decoding memory-bound?", return_tensors="pt")
output = target.generate(
    **inputs, assistant_model=draft, do_sample=False, max_new_tokens=64,{extra}
)
print(tok.decode(output[0], skip_special_tokens=True))'''
    return program, warnings


ENGINES: dict[str, tuple[str, Callable[[Order], tuple[str, list[str]]]]] = {
    "vllm": ("the documentation of vLLM 0.25.0, features/speculative_decoding", vllm),
    "sglang": ("SGLang's docs/advanced_features/speculative_decoding.md at commit 067ad4d (2026)", sglang),
    "llama.cpp": ("llama.cpp's docs/speculative.md and examples/speculative-simple at 7fe450e (2026)", llama_cpp),
    "transformers": ("transformers 5.24.0", transformers),
}


def emit(engine: str, order: Order) -> str:
    """The whole text: what it follows and its warnings as comments, then the configuration. KeyError if unknown."""
    follows, write = ENGINES[engine]
    text, warnings = write(order)
    return "\n".join([f"# {engine}, after {follows}", *(f"# warning: {warning}" for warning in warnings), text])


def _gguf(name: str) -> str:
    return name if name.endswith(".gguf") else f"{name.rstrip('/').rpartition('/')[2]}.gguf"
