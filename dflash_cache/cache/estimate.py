"""How large a cache will be, before it is made."""

from .codecs import CODECS
from .spec import QUANTIZED, CacheSpec

# Stored over raw size, the worst of the states measured: four models in bfloat16, the demo's target
# in float32 (docs/decisions/0003-codecs.md).
RATIOS = {
    "bfloat16": {"crc32c": 1.0, "lz4": 0.82, "zstd": 0.72},
    "float32": {"crc32c": 1.0, "lz4": 0.92, "zstd": 0.89},
}
# Metadata and small arrays: a dozen files a segment, ids and masks, shares of a file system block.
SEGMENT_BYTES = 48 << 10
SCALE_BYTES = 4  # float32, for each token and layer of 8-bit states


def estimate_bytes(spec: CacheSpec, num_tokens: int, num_segments: int) -> dict[str, int]:
    """Bytes on disk by codec, for hidden states of ``num_tokens`` tokens and all beside them."""
    raw = num_tokens * spec.token_bytes
    target = 2 * spec.vocab_size * spec.hidden_size * spec.item_bytes
    beside = target + num_segments * SEGMENT_BYTES
    scaled = spec.num_states * (spec.hidden_size + SCALE_BYTES)
    ratios = RATIOS[spec.dtype] | {QUANTIZED: scaled / spec.token_bytes}
    return {name: round(raw * ratios[name]) + beside for name in CODECS}
