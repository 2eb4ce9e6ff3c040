"""The cache on disk: the only package that imports zarr and numcodecs. It does not import torch."""

from .budget import (
    Budget,
    content_bytes,
    folder_bytes,
    most_content_bytes,
    most_log_bytes,
    most_segment_bytes,
    open_budget,
    segment_bytes,
)
from .cache import Cache
from .codecs import CODECS
from .content import PlannedPart, TargetParts
from .durable import (
    checked_line,
    fsync_path,
    fsync_tree,
    parse_checked_line,
    remove_tree,
    require_file_place,
    write_atomically,
)
from .estimate import estimate_bytes
from .fingerprints import digest, file_fingerprint
from .layout import ROOT, SPEC, TARGET
from .lock import writer_lock
from .merge import merge_caches
from .repair import (
    dead_links,
    rebuild_commits,
    require_links_lead,
    restore_spec,
    rewrite_content,
    uncommit,
)
from .segment import SegmentWriter
from .spec import (
    CacheSpec,
    DatasetPart,
    TargetIdentity,
    differences,
    part_number,
    require_same_identity,
)
from .storage import Storage, missing_file, open_storage, repair_command
from .values import float32_states, saturated
from .verify import Fault, verify_cache
from .writer import CacheWriter

__all__ = [
    "CODECS",
    "ROOT",
    "SPEC",
    "TARGET",
    "Budget",
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
    "checked_line",
    "content_bytes",
    "dead_links",
    "differences",
    "digest",
    "estimate_bytes",
    "file_fingerprint",
    "float32_states",
    "folder_bytes",
    "fsync_path",
    "fsync_tree",
    "merge_caches",
    "missing_file",
    "most_content_bytes",
    "most_log_bytes",
    "most_segment_bytes",
    "open_budget",
    "open_storage",
    "parse_checked_line",
    "part_number",
    "rebuild_commits",
    "remove_tree",
    "repair_command",
    "require_file_place",
    "require_links_lead",
    "require_same_identity",
    "restore_spec",
    "rewrite_content",
    "saturated",
    "segment_bytes",
    "uncommit",
    "verify_cache",
    "write_atomically",
    "writer_lock",
]
