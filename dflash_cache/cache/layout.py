"""What lies in a cache under which name."""

from dflash_cache.run_files import CACHE_SPEC

SPEC = CACHE_SPEC
LOG = "commits.log"
LOCK = "lock"
STAGING = "staging"
LEDGERS = "ledger"
ROOT = "cache.zarr"
SEGMENTS = f"{ROOT}/segments"
PLAN = f"{ROOT}/plan"
TARGET = f"{ROOT}/target"


def segment_name(index: int) -> str:
    return f"{index:08d}"


def segment_folder(index: int) -> str:
    return f"{SEGMENTS}/{segment_name(index)}"


def plan_folder(part: int) -> str:
    """Of the plan of dataset part number ``part``."""
    return f"{PLAN}/{part:04d}"


def ledger_name(part: int) -> str:
    """Of the list of rows that the plan of dataset part number ``part`` left out."""
    return f"{LEDGERS}/{part:04d}.jsonl"
