"""The identity of a cache: everything that must agree before two things may be used together."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from typing import Any, Self

import numpy as np

from dflash_cache.errors import CacheMismatchError
from dflash_cache.types import DtypeName

FORMAT_VERSION = 1
QUANTIZED = "fp8"
LAYER_CONVENTION = "output of 0-based decoder layer, before the final norm"
# Where something was read from may change, what it holds may not; the rest follows from others.
_NOT_COMPARED = {"target", "revision", "dataset", "num_rows", "num_segments"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetIdentity:
    """Which target, by content: hashes do not change when a folder is moved."""

    target: str
    revision: str
    target_config_hash: str
    target_weights_hash: str
    tokenizer_hash: str
    chat_template_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetPart:
    """One dataset in a cache, and everything that its plan is a function of."""

    dataset: str
    dataset_fingerprint: str
    num_rows: int  # the rows of later parts are numbered after these
    num_segments: int
    limit: int | None
    max_seq_len: int
    too_long: str
    segment_tokens: int
    plan_seed: int
    on_bad_row: str = "fail"  # caches from before there was a choice


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSpec(TargetIdentity):
    """Recorded in ``spec.json`` and compared by resume, train and evaluate."""

    target_layer_ids: tuple[int, ...]
    keep_last: bool  # the state after the final norm too, as one more layer at the end
    num_target_layers: int
    hidden_size: int
    vocab_size: int
    dtype: DtypeName
    codec: str
    parts: tuple[DatasetPart, ...]
    layer_convention: str = LAYER_CONVENTION
    format_version: int = FORMAT_VERSION

    @property
    def item_bytes(self) -> int:
        """A value in ``dtype``."""
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def token_bytes(self) -> int:
        """Hidden states of one token in ``dtype``, before any compression."""
        return self.num_states * self.hidden_size * self.item_bytes

    @property
    def num_states(self) -> int:
        """Hidden states of one token: the K axis."""
        return len(self.target_layer_ids) + self.keep_last

    @property
    def quantized(self) -> bool:
        """Whether states are stored in 8 bits, with a scale for each token and layer."""
        return self.codec == QUANTIZED

    @property
    def logical_dtype(self) -> str:
        """What the stored bits of hidden states mean."""
        return "float8_e4m3fn" if self.quantized else self.dtype

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The array of hidden states on disk: Zarr has no name for bfloat16 and float8_e4m3fn."""
        dtypes = {"float8_e4m3fn": np.uint8, "bfloat16": np.uint16, "float32": np.float32}
        return np.dtype(dtypes[self.logical_dtype])

    @property
    def stored_token_bytes(self) -> int:
        """Hidden states of one token as they are stored, before any compression."""
        return self.num_states * self.hidden_size * self.stored_dtype.itemsize

    @property
    def state_names(self) -> tuple[int | str, ...]:
        """What each place of the K axis holds: the layer's id, or "last" for the head's input."""
        return (*self.target_layer_ids, "last") if self.keep_last else self.target_layer_ids

    @property
    def first_rows(self) -> list[int]:
        """The number of each part's first row."""
        return [0, *accumulate(part.num_rows for part in self.parts)]

    @property
    def first_segments(self) -> list[int]:
        """The index of each part's first segment, and last the number of segments."""
        return [0, *accumulate(part.num_segments for part in self.parts)]

    def part_of(self, segment: int) -> int:
        """The number of the dataset part that segment ``segment`` belongs to."""
        return bisect_right(self.first_segments, segment) - 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        version = record.get("format_version")
        if version != FORMAT_VERSION or set(record) != known:
            others = ", ".join(sorted(set(record) ^ known)) or "none"
            raise CacheMismatchError(
                f"the identity has format version {version}, this program reads {FORMAT_VERSION} "
                f"(fields that only one of them has: {others}); use the program version that "
                "wrote it, or extract into a new folder"
            )
        parts = tuple(DatasetPart(**part) for part in record["parts"])
        layer_ids = tuple(record["target_layer_ids"])
        return cls(**record | {"target_layer_ids": layer_ids, "parts": parts})


def differences(found: Any, expected: Any) -> list[str]:
    """Each field that both have and that differs, with both values; parts by their number."""
    shared = {f.name for f in fields(found)} & {f.name for f in fields(expected)}
    differing = [
        f"{f.name}: {getattr(found, f.name)!r}, expected {getattr(expected, f.name)!r}"
        for f in fields(expected)
        if f.name in shared - _NOT_COMPARED - {"parts"}
        and getattr(found, f.name) != getattr(expected, f.name)
    ]
    if "parts" in shared:
        differing += _part_differences(found.parts, expected.parts)
    return differing


def _part_differences(found: Sequence[DatasetPart], expected: Sequence[DatasetPart]) -> list[str]:
    differing = [
        f"part {number}, {difference}" if len(expected) > 1 else difference
        for number, pair in enumerate(zip(found, expected, strict=False))
        for difference in differences(*pair)
    ]
    if len(found) != len(expected):
        differing.append(f"parts: {len(found)}, expected {len(expected)}")
    return differing


def part_number(spec: CacheSpec, part: DatasetPart) -> int | None:
    """Which of ``spec``'s parts ``part`` is, by content; None if it is none of them.

    ``CacheMismatchError`` if one is of the same dataset and planned otherwise: its rows would be
    there twice.
    """
    for number, known in enumerate(spec.parts):
        if known.dataset_fingerprint == part.dataset_fingerprint:
            if differing := differences(part, known):
                raise CacheMismatchError(
                    f"the cache holds {part.dataset} with other settings:\n  "
                    + "\n  ".join(differing)
                    + "\nUse the settings that made it, or another --cache"
                )
            return number
    return None


def require_same_identity(
    found: TargetIdentity, expected: TargetIdentity, *, what: str, remedy: str
) -> None:
    """Raise ``CacheMismatchError`` naming each field that both have and that differs."""
    if differing := differences(found, expected):
        raise CacheMismatchError(f"{what}:\n  " + "\n  ".join(differing) + f"\n{remedy}")
