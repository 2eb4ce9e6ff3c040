"""The cache on disk: the only package that imports zarr and numcodecs. It does not import torch."""

from .cache import Cache
from .codecs import CODECS
from .content import PlannedPart, TargetParts
from .durable import fsync_path, fsync_tree, remove_tree, write_atomically
from .estimate import estimate_bytes
from .fingerprints import digest, file_fingerprint
from .layout import ROOT, SPEC, TARGET
from .lock import writer_lock
from .merge import merge_caches
from .repair import rebuild_commits, restore_spec, rewrite_content, uncommit
from .segment import SegmentWriter
from .spec import (
    CacheSpec,
    DatasetPart,
    TargetIdentity,
    differences,
    part_number,
    require_same_identity,
)
from .storage import Storage, open_storage
from .verify import Fault, verify_cache
from .writer import CacheWriter

__all__ = [
    "CODECS",
    "ROOT",
    "SPEC",
    "TARGET",
    "Cache",
    "CacheSpec",
    "CacheWriter",
    "DatasetPart",
    "Fault",
    "PlannedPart",
    "SegmentWriter",
    "Storage",
    "TargetIdentity",
    "TargetParts",
    "differences",
    "digest",
    "estimate_bytes",
    "file_fingerprint",
    "fsync_path",
    "fsync_tree",
    "merge_caches",
    "open_storage",
    "part_number",
    "rebuild_commits",
    "remove_tree",
    "require_same_identity",
    "restore_spec",
    "rewrite_content",
    "uncommit",
    "verify_cache",
    "write_atomically",
    "writer_lock",
]
