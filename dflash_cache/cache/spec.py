"""The identity of a cache: everything that must agree before two things may be used together."""

from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from dflash_cache.errors import CacheMismatchError
from dflash_cache.types import DtypeName

FORMAT_VERSION = 1
LAYER_CONVENTION = "output of 0-based decoder layer, before the final norm"
# Where something was read from may change; what it holds may not.
_NOT_COMPARED = {"target", "revision", "dataset"}


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
class CacheSpec(TargetIdentity):
    """Recorded in ``spec.json`` and compared by resume, train and evaluate."""

    dataset: str
    dataset_fingerprint: str
    target_layer_ids: tuple[int, ...]
    num_target_layers: int
    hidden_size: int
    vocab_size: int
    dtype: DtypeName
    codec: str
    max_seq_len: int
    too_long: str
    segment_tokens: int
    plan_seed: int
    limit: int | None
    layer_convention: str = LAYER_CONVENTION
    format_version: int = FORMAT_VERSION

    @property
    def item_bytes(self) -> int:
        return 2 if self.dtype == "bfloat16" else 4

    @property
    def token_bytes(self) -> int:
        """Hidden states of one token, before any compression."""
        return len(self.target_layer_ids) * self.hidden_size * self.item_bytes

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
        return cls(**record | {"target_layer_ids": tuple(record["target_layer_ids"])})


def require_same_identity(
    found: TargetIdentity, expected: TargetIdentity, *, what: str, remedy: str
) -> None:
    """Raise ``CacheMismatchError`` naming each field that both have and that differs."""
    shared = {f.name for f in fields(found)} & {f.name for f in fields(expected)}
    differing = [
        f"{f.name}: {getattr(found, f.name)!r}, expected {getattr(expected, f.name)!r}"
        for f in fields(expected)
        if f.name in shared - _NOT_COMPARED and getattr(found, f.name) != getattr(expected, f.name)
    ]
    if differing:
        raise CacheMismatchError(f"{what}:\n  " + "\n  ".join(differing) + f"\n{remedy}")
