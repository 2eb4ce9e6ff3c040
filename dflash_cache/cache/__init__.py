"""The cache on disk: the only package that imports zarr and numcodecs. It does not import torch."""

from .cache import Cache
from .codecs import CODECS
from .content import CacheContent, TargetParts
from .durable import (
    file_fingerprint,
    fsync_path,
    fsync_tree,
    remove_tree,
    write_atomically,
)
from .estimate import estimate_bytes, free_bytes
from .folder import LOG, ROOT, SPEC, require_free_folder
from .lock import writer_lock
from .repair import rebuild_log, restore_spec, rewrite_content, uncommit
from .segment import SegmentWriter
from .spec import CacheSpec, TargetIdentity, require_same_identity
from .verify import Fault, verify_cache
from .writer import CacheWriter

__all__ = [
    "CODECS",
    "LOG",
    "ROOT",
    "SPEC",
    "Cache",
    "CacheContent",
    "CacheSpec",
    "CacheWriter",
    "Fault",
    "SegmentWriter",
    "TargetIdentity",
    "TargetParts",
    "estimate_bytes",
    "file_fingerprint",
    "free_bytes",
    "fsync_path",
    "fsync_tree",
    "rebuild_log",
    "remove_tree",
    "require_free_folder",
    "require_same_identity",
    "restore_spec",
    "rewrite_content",
    "uncommit",
    "verify_cache",
    "write_atomically",
    "writer_lock",
]
