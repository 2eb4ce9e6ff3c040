"""The cache on disk: the only package that imports zarr and numcodecs. It does not import torch."""

from .cache import Cache, CacheWriter, TargetParts
from .codecs import CODECS
from .lock import writer_lock
from .segment import SegmentWriter
from .spec import CacheSpec, TargetIdentity, require_same_identity

__all__ = [
    "CODECS",
    "Cache",
    "CacheSpec",
    "CacheWriter",
    "SegmentWriter",
    "TargetIdentity",
    "TargetParts",
    "require_same_identity",
    "writer_lock",
]
