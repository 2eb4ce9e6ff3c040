"""Small Zarr arrays of the codec chain bytes + crc32c, written by zarr and read without it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec

from dflash_cache.types import Array

from .fingerprints import Fingerprints, read_fingerprinted
from .storage import Storage

CHUNK_BYTES = 4 << 20


def group_metadata(attributes: Mapping[str, object] | None = None) -> bytes:
    """A Zarr v3 group's ``zarr.json``, the same bytes for the same attributes."""
    metadata = {"zarr_format": 3, "node_type": "group", "attributes": attributes or {}}
    return json.dumps(metadata, indent=1).encode()


def write_group(folder: Path, attributes: Mapping[str, object] | None = None) -> None:
    """Create a Zarr v3 group."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_bytes(group_metadata(attributes))


def write_array(folder: Path, data: Array, *, logical_dtype: str | None = None) -> None:
    """Store ``data`` as a Zarr v3 array, cut along its first axis into chunks of about 4 MiB.

    ``logical_dtype`` is set as an attribute where Zarr has no name for the dtype, as for the
    bfloat16 bit patterns of a uint16 array.
    """
    array = zarr.create_array(
        store=folder,
        shape=data.shape,
        dtype=data.dtype,
        chunks=(_chunk_rows(data.shape, data.dtype), *data.shape[1:]),
        compressors=(Crc32cCodec(),),
        fill_value=0,
        chunk_key_encoding={"name": "default", "separator": "."},
        attributes={"logical_dtype": logical_dtype} if logical_dtype else {},
        config={"write_empty_chunks": True},  # an absent chunk must always mean damage
    )
    array[...] = data


def _chunk_rows(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    row_bytes = np.dtype(dtype).itemsize * math.prod(shape[1:])
    return max(1, min(shape[0], CHUNK_BYTES // max(1, row_bytes)))


def read_array(storage: Storage, name: str, fingerprints: Fingerprints) -> Array:
    """Read array ``name``, every byte checked; ``CacheCorruptError`` names the file."""
    key = f"{name}/zarr.json"
    metadata = json.loads(read_fingerprinted(storage, key, fingerprints[key]))
    shape, dtype = tuple(metadata["shape"]), metadata["data_type"]
    return read_chunks(storage, name, fingerprints, shape, dtype)


def read_chunks(
    storage: Storage,
    name: str,
    fingerprints: Fingerprints,
    shape: tuple[int, ...],
    dtype: npt.DTypeLike,
) -> Array:
    """The values of array ``name`` of known shape, without a look at its metadata.

    The recorded digest is of the whole file, the crc32c at each chunk's end included.
    """
    rows, data = _chunk_rows(shape, dtype), np.empty(shape, dtype)
    for index in range(math.ceil(shape[0] / rows)):
        key = ".".join([f"{name}/c", str(index)] + ["0"] * (len(shape) - 1))
        payload = read_fingerprinted(storage, key, fingerprints[key])
        chunk = np.frombuffer(payload[:-4], data.dtype).reshape(rows, *shape[1:])
        part = data[index * rows : (index + 1) * rows]
        part[...] = chunk[: len(part)]
    return data
