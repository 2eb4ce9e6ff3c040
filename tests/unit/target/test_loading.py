"""What loading a target takes of the host's memory."""

import gc
import sys

import pytest
import torch

from dflash_cache.target import Target
from tests.support.resident import Growth
from tests.support.tiny_targets import build_target


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's own memory")
@pytest.mark.parametrize(("dtype", "copies"), [("bfloat16", 0), ("float32", 2)])
def test_weights_stay_in_the_file_s_pages_unless_their_type_changes(dtype, copies, tmp_path):
    """So copies of a large target on several devices need the host's memory once."""
    build_target(vocab=400_000, tied=True).bfloat16().save_pretrained(tmp_path)
    file_bytes = (tmp_path / "model.safetensors").stat().st_size
    Target.load(tmp_path, dtype=dtype, device="cpu")  # what stays loaded
    gc.collect()
    with Growth(every_s=0.001) as growth:
        target = Target.load(tmp_path, dtype=dtype, device="cpu")
    assert target.embedding.dtype == getattr(torch, dtype)
    assert growth.peak_bytes < (copies + 0.25) * file_bytes
