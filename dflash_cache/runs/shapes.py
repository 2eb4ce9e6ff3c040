"""What files of a run have to hold for those that read them; what else they hold is left alone.

A shape is a type, or types one of which it is; ``[shape]`` for a list of any length;
``{name: shape}`` for an object that has these names, where ``name?`` may be missing or null; and
``{ANY: shape}`` for one of any names.
"""

from collections.abc import Iterator, Mapping
from typing import Any

ANY = "*"
NUMBER = (int, float)

_STAGES = {ANY: {f"{state}_s": NUMBER for state in ("busy", "starved", "blocked")}}
_SIZES = ("segments", "num_sequences", "num_tokens", "bytes_raw", "bytes_stored")
OUTCOME = {
    "extract?": {"stages": _STAGES},
    "train?": {"stages": _STAGES, "waiting_share": NUMBER, "wall_s": NUMBER},
    "cache?": {"address": str, **dict.fromkeys(_SIZES, int)},
}
RUN = {"cache": dict, "settings": dict, "num_rows": int, "held_out_rows": [int]}
TRAINING = {"steps": int, "block_acceptance_length?": NUMBER, "slot_accuracy?": [NUMBER]}
METRICS = {"step": int}
LOGGED = {  # a line of metrics that has a loss
    **dict.fromkeys(("loss", "lr", "tokens_per_s", "waiting_share"), NUMBER),
    "step": int,
    "tokens": int,
    "block_acceptance_length": NUMBER,
    "slot_accuracy": [NUMBER],
}
MEASURED = {  # one that was measured on held-out rows
    "step": int,
    "held_out_block_acceptance_length": NUMBER,
}
_PIECE = {"id": int, "text?": str, "bytes?": str}
_EXAMPLE = {
    "prompt": int,
    "category?": str,
    "prompt_end": [_PIECE],
    "first_token": _PIECE,
    "blocks": [{"drafts": [_PIECE], "accepted": int, "target_token?": _PIECE}],
    "num_blocks": int,
}
_DECODED = {"acceptance_length": NUMBER, "prompts": int, "tokens": int}
DRAFTER = {
    "acceptance_length": NUMBER,
    "speedup": NUMBER,
    "lossless?": NUMBER,
    "tokens?": int,
    "steps?": int,
    "mismatches?": [{"prompt": int, "position": int, "gap": NUMBER}],
    "by_category?": {ANY: _DECODED},
    "untrained?": {"acceptance_length": NUMBER},
    "examples?": [_EXAMPLE],
}
EVALUATION = {
    "config": {"drafter": [str], "new_tokens": int, "dtype": str, "device": str},
    "measured?": str,
    "report": {
        "prompts": int,
        "held_out": bool,
        "temperature": NUMBER,
        "prompt_lookup": {"acceptance_length": NUMBER, "speedup": NUMBER},
        "drafters?": {ANY: DRAFTER},
    },
}


def misfit(value: Any, shape: Any, where: str = "it") -> str | None:
    """What of ``value`` is not as ``shape`` says, in words; None if all is."""
    return next(_misfits(value, shape, where), None)


def _misfits(value: Any, shape: Any, where: str) -> Iterator[str]:
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            yield f"{where} is no object"
            return
        for name, inner in _named(shape, value):
            if name in value:
                yield from _misfits(value[name], inner, f"{where}.{name}")
            else:
                yield f"{where} has no {name}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, each in enumerate(value):
            yield from _misfits(each, shape[0], f"{where}[{number}]")
    elif not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        yield f"{where} is {str(value)[:40]!r}"


def _named(shape: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names that ``value`` must have, or has."""
    for name, inner in shape.items():
        if name == ANY:
            yield from ((each, inner) for each in value)
        elif not name.endswith("?"):
            yield name, inner
        elif value.get(name[:-1]) is not None:
            yield name[:-1], inner
