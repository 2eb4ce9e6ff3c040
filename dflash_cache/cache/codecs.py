"""Zarr codec chains for hidden states, and the same chains as plain functions on chunks.

Every chain ends with crc32c, so that no byte is used unchecked.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numcodecs import blosc
from zarr.codecs import BloscCodec, Crc32cCodec

from dflash_cache.errors import ConfigError
from dflash_cache.types import Array

from .spec import QUANTIZED

CHECKSUM_BYTES = 4
_SHUFFLE = {
    "noshuffle": blosc.NOSHUFFLE,
    "shuffle": blosc.SHUFFLE,
    "bitshuffle": blosc.BITSHUFFLE,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkCodec:
    """How an inner chunk of hidden states becomes bytes: blosc settings, or none at all."""

    name: str
    blosc_name: Literal["lz4", "zstd"] | None = None
    level: int = 0
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"] = "noshuffle"
    block_bytes: int = 0

    def zarr_chain(self, item_bytes: int) -> tuple[BloscCodec | Crc32cCodec, ...]:
        """The bytes-to-bytes codecs for an array's metadata."""
        if self.blosc_name is None:
            return (Crc32cCodec(),)
        compressor = BloscCodec(
            cname=self.blosc_name,
            clevel=self.level,
            shuffle=self.shuffle,
            typesize=item_bytes,
            blocksize=self.block_bytes,
        )
        return (compressor, Crc32cCodec())

    def encode(self, chunk: Array) -> memoryview:
        """The payload of a contiguous ``chunk``, without its checksum."""
        if self.blosc_name is None:
            return chunk.reshape(-1).view(np.uint8).data
        return memoryview(
            blosc.compress(
                chunk,
                self.blosc_name.encode(),
                self.level,
                _SHUFFLE[self.shuffle],
                self.block_bytes,
                typesize=chunk.itemsize,
            )
        )

    @property
    def compresses(self) -> bool:
        """Whether the payload is anything but the chunk's own bytes."""
        return self.blosc_name is not None

    def decompress(self, payload: memoryview, into: memoryview) -> None:
        """Write the bytes of a compressed chunk's values to ``into``."""
        blosc.decompress(payload, into)


CODECS = {
    codec.name: codec
    for codec in (
        ChunkCodec(name="crc32c"),
        ChunkCodec(name="lz4", blosc_name="lz4", level=5, shuffle="bitshuffle"),
        ChunkCodec(name="zstd", blosc_name="zstd", level=1, shuffle="shuffle", block_bytes=1 << 18),
        ChunkCodec(name=QUANTIZED),  # the chunks' bytes are stored as they are: quantized before
    )
}


def chunk_codec(name: str) -> ChunkCodec:
    if name not in CODECS:
        raise ConfigError(f"--codec {name}: choose one of {', '.join(CODECS)}")
    return CODECS[name]
