"""Zarr codec chains for hidden states, and the same chains as plain functions on chunks.

Every chain ends with crc32c, so that no byte is used unchecked.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numcodecs import blosc
from zarr.codecs import BloscCodec, Crc32cCodec

from dflash_cache.errors import CacheCorruptError, ConfigError
from dflash_cache.types import Array

from .durable import crc32c
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

    def encode(self, chunk: Array) -> bytes | Array:
        """The payload of a contiguous ``chunk``, without its checksum."""
        if self.blosc_name is None:
            return chunk.reshape(-1).view(np.uint8)
        return bytes(
            blosc.compress(
                chunk,
                self.blosc_name.encode(),
                self.level,
                _SHUFFLE[self.shuffle],
                self.block_bytes,
                typesize=chunk.itemsize,
            )
        )

    def landing(self, values: Array, num_bytes: int) -> Array:
        """Where to read ``num_bytes`` of payload that will become ``values``: uint8 [num_bytes].

        Uncompressed bytes land in ``values`` itself and are copied nowhere else.
        """
        if self.blosc_name is None and values.nbytes == num_bytes:
            return values.reshape(-1).view(np.uint8)
        return np.empty(num_bytes, np.uint8)

    def check(self, payload: Array, checksum: bytes, crc: int, where: str) -> None:
        """``CacheCorruptError``, naming ``where``, unless ``payload`` is as it was written.

        ``checksum`` stands behind it on disk; ``crc`` was recorded on commit, so that a whole
        chunk of another segment is found out as well.
        """
        if checksum != crc.to_bytes(CHECKSUM_BYTES, "little") or crc32c(payload) != crc:
            raise CacheCorruptError(f"{where}: the chunk's checksum does not match its bytes")

    def decode(self, payload: Array, checksum: bytes, crc: int, into: Array, where: str) -> None:
        """Check ``payload`` (of ``landing``, filled) and write its values to ``into``."""
        self.check(payload, checksum, crc, where)
        if self.blosc_name is not None:
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
