import numpy as np
import pytest
import zarr

from dflash_cache.cache.codecs import CODECS, chunk_codec
from dflash_cache.cache.durable import crc32c
from dflash_cache.errors import ConfigError

DTYPES = [np.dtype(np.uint16), np.dtype(np.float32)]


def random_chunk(dtype: np.dtype) -> np.ndarray:
    """Every bit pattern may occur, those of NaN too."""
    return (
        np.random.default_rng(0).integers(0, 256, (5, 2, 8 * dtype.itemsize), np.uint8).view(dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_decoding_gives_the_encoded_bits_back(codec, dtype):
    for chunk in (random_chunk(dtype), np.zeros((5, 2, 8), dtype)):
        found = np.ones_like(chunk)
        payload, into = codec.encode(chunk), found.reshape(-1).view(np.uint8).data
        if codec.compresses:
            codec.decompress(payload, into)
        else:
            into[:] = payload
        assert found.tobytes() == chunk.tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_stored_chunk_is_what_zarr_reads_through_the_chain_in_the_metadata(
    tmp_path, codec, dtype
):
    chunk = random_chunk(dtype)
    array = zarr.create_array(
        store=tmp_path,
        shape=chunk.shape,
        dtype=dtype,
        chunks=chunk.shape,
        compressors=codec.zarr_chain(dtype.itemsize),
        chunk_key_encoding={"name": "default", "separator": "."},
    )
    payload = bytes(codec.encode(chunk))
    (tmp_path / "c.0.0.0").write_bytes(payload + crc32c(payload).to_bytes(4, "little"))
    assert np.asarray(array[...]).tobytes() == chunk.tobytes()


@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_every_chain_ends_with_crc32c_and_shuffles_by_the_size_of_an_item(codec, item_bytes):
    *compressors, checksum = [part.to_dict() for part in codec.zarr_chain(item_bytes)]
    assert checksum["name"] == "crc32c"
    assert [part["configuration"]["typesize"] for part in compressors] == (
        [item_bytes] if codec.blosc_name else []
    )


def test_the_compressing_codecs_make_bfloat16_states_smaller():
    values = np.random.default_rng(0).standard_normal((64, 2, 64), np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    for name in ("lz4", "zstd"):
        assert len(CODECS[name].encode(bits)) < 0.9 * bits.nbytes


def test_an_unknown_codec_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=f"--codec gzip: choose one of {', '.join(CODECS)}"):
        chunk_codec("gzip")
