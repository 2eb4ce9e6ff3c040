"""The model card beside an exported drafter: what it is, what it was made from, how to serve it."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from dflash_cache.model_names import is_hub_id, shown_model

from .config import DrafterConfig
from .speculators import causal_layers

Rows = Iterable[tuple[str, Any]]

_INTRODUCTION = """\
It proposes a block of tokens at once from the target's hidden states, for the target to check
(arXiv 2602.06036). Embedding and head are the target's and no part of it.
"""
_NOT_RUN = """\
From the folder that holds this one. These commands follow the engines' documentation and were not
run with this drafter.
"""
_TWO_CAUSALITIES = """\
**vLLM reads one causality for all layers from this layout, and this drafter has two.**
Serve it from an export with `--format transformers`.
"""


def model_card(
    config: DrafterConfig, training: Mapping[str, Any], *, layout: str, dtype: str, name: str
) -> str:
    """``README.md`` of the export folder ``name``.

    ``training`` is the content of ``training.json``; what it does not say is left out.
    """
    cache = training.get("cache", {})
    target = cache.get("target", "the target")
    sections = [
        _front_matter(layout, cache),
        f"# DFlash drafter for {shown_model(target)}\n\n{_INTRODUCTION}",
        _section("Drafter", _shape(config, dtype)),
        _section("Target", _target(cache)),
        _section("Data", _data(training)),
        _section("Training", _training(training)),
        _section("Figures", _figures(training)),
        _serving(config, layout, target, name),
    ]
    return "\n".join(section for section in sections if section)


def _front_matter(layout: str, cache: Mapping[str, Any]) -> str:
    lines = [f"library_name: {layout}", "tags: [dflash, speculative-decoding]"]
    target = str(cache.get("target", ""))
    if is_hub_id(target):
        lines.append(f"base_model: {target}")
    return "\n".join(["---", *lines, "---", ""])


def _section(title: str, rows: Rows) -> str:
    lines = [f"| {what} | {_cell(value)} |" for what, value in rows if value not in (None, "")]
    table = ["| | |", "|---|---|", *lines, ""]
    return "\n".join([f"## {title}", "", *table]) if lines else ""


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell, value))
    return str(value).replace("|", "\\|")


def _shape(config: DrafterConfig, dtype: str) -> Rows:
    yield "block size", f"{config.block_size}, the anchor included"
    yield "target layers", _cell(config.target_layer_ids)
    yield "counted from", f"0, the first of the target's {config.num_target_layers}; their outputs"
    yield "mask token", config.mask_token_id
    yield "layers", config.num_hidden_layers
    yield "kinds of layers", config.layer_types
    yield "sliding window", config.sliding_window
    yield "hidden size", config.hidden_size
    yield "dtype", dtype


def _target(cache: Mapping[str, Any]) -> Rows:
    yield "name", shown_model(cache.get("target", ""))
    yield "revision", cache.get("revision")
    for part in ("target_weights", "target_config", "tokenizer", "chat_template"):
        yield (
            f"hash of its {part.removeprefix('target_').replace('_', ' ')}",
            cache.get(f"{part}_hash"),
        )


def _data(training: Mapping[str, Any]) -> Rows:
    cache = training.get("cache", {})
    for part in cache.get("parts", ()):
        yield "dataset", part["dataset"]
        yield "its fingerprint", part["dataset_fingerprint"]
        yield "its limit on the length [tokens]", part["max_seq_len"]
    yield "rows extracted", training.get("num_rows")
    if "held_out_rows" in training:
        yield "of them held out", len(training["held_out_rows"])
    yield (
        "hidden states stored as",
        ", ".join(str(cache[key]) for key in ("dtype", "codec") if key in cache),
    )


def _training(training: Mapping[str, Any]) -> Rows:
    yield "steps", training.get("steps")
    settings = training.get("settings", {})
    said = {"steps", "epochs"} if settings.get("steps") else {"steps"}  # epochs are not in force
    for name, value in settings.items():
        if name not in said:
            yield f"`{name}`", value


def _figures(training: Mapping[str, Any]) -> Rows:
    yield (
        "block acceptance length, held-out rows, teacher-forced",
        training.get("block_acceptance_length"),
    )
    yield "accuracy of slots 1, 2, ..., held-out rows", training.get("slot_accuracy")
    batch = training.get("training_batch", {})
    yield "loss of a training batch", batch.get("loss")
    yield "block acceptance length of that batch", batch.get("block_acceptance_length")
    evaluation = training.get("evaluation", {})
    yield "acceptance length, by decoding", evaluation.get("acceptance_length")
    yield "share of outputs equal to the target's own", evaluation.get("lossless")
    yield "speed-up of this program's own decoder", evaluation.get("speedup")
    yield "prompts decoded", evaluation.get("prompts")
    if "held_out" in evaluation:
        yield "only held-out prompts", "yes" if evaluation["held_out"] else "not known"
    yield (
        "prompt lookup's acceptance length",
        evaluation.get("prompt_lookup", {}).get("acceptance_length"),
    )


def vllm_command(config: DrafterConfig, target: str, drafter: str) -> str:
    """The command line that serves ``target`` with the drafter in the folder ``drafter``."""
    setting = {
        "method": "dflash",
        "model": drafter,
        "num_speculative_tokens": config.block_size - 1,
    }
    return f"vllm serve {target} --speculative-config '{json.dumps(setting)}'"


def sglang_command(config: DrafterConfig, target: str, drafter: str) -> str:
    """The same for SGLang, which counts the anchor among the draft tokens."""
    return (
        f"python -m sglang.launch_server --model-path {target} --speculative-algorithm DFLASH \\\n"
        f"    --speculative-draft-model-path {drafter} "
        f"--speculative-num-draft-tokens {config.block_size}"
    )


def _serving(config: DrafterConfig, layout: str, target: str, name: str) -> str:
    causal = set(causal_layers({"layer_types": config.layer_types, "is_causal": config.is_causal}))
    mixed = len(set(config.layer_types)) > 1
    lines = ["## Serving", "", _NOT_RUN, "```bash"]
    lines += [vllm_command(config, target, f"./{name}"), "```", ""]
    if "/" in target and not is_hub_id(target):
        lines += ["The target's path is that of the machine that extracted its states.", ""]
    if mixed:
        lines += ["vLLM needs `VLLM_USE_V2_MODEL_RUNNER=1` for layers of different kinds.", ""]
    if layout == "speculators":
        if len(causal) > 1:
            lines.append(_TWO_CAUSALITIES)
        lines += ["For SGLang export with `--format transformers`.", ""]
    else:
        lines += ["```bash", sglang_command(config, target, f"./{name}"), "```", ""]
    return "\n".join(lines)
