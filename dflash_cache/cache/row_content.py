"""A row known by what it holds, wherever it stands."""

from dataclasses import dataclass

import numpy as np
import xxhash

from dflash_cache.types import Array


@dataclass(frozen=True, kw_only=True, slots=True)
class RowContent:
    """The number of a row's tokens, as they were used, and their hash."""

    num_tokens: int
    tokens_hash: str

    @classmethod
    def of(cls, input_ids: Array) -> "RowContent":
        ids = np.ascontiguousarray(input_ids, np.int32)
        return cls(num_tokens=len(ids), tokens_hash=xxhash.xxh3_128_hexdigest(ids.data))
