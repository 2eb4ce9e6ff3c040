"""The frozen target: identity, weights, capture of hidden states, decoding."""

from .batch import BatchCapture, BatchUnderWay, capture_batch
from .batched import BatchedDecoder
from .capture import LayerCapture
from .decoding import TargetDecoder, require_decodable, stop_token_ids
from .identity import identify_target, resolve_target
from .model import Target, TargetShape, mask_token_of, reserved_tokens
from .quantization import quantize
from .staging import CopyStream, StagingBuffer

__all__ = [
    "BatchCapture",
    "BatchUnderWay",
    "BatchedDecoder",
    "CopyStream",
    "LayerCapture",
    "StagingBuffer",
    "Target",
    "TargetDecoder",
    "TargetShape",
    "capture_batch",
    "identify_target",
    "mask_token_of",
    "quantize",
    "require_decodable",
    "reserved_tokens",
    "resolve_target",
    "stop_token_ids",
]
