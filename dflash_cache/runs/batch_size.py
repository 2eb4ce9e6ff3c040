"""How large a target's batches are: what ``--batch-tokens auto`` finds."""

import time
from dataclasses import dataclass

import numpy as np
import torch

from dflash_cache.errors import ConfigError
from dflash_cache.target import CopyStream, LayerCapture, StagingBuffer, capture_batch
from dflash_cache.types import Int64Array

from .memory import host_bytes_left, peak_memory
from .preparation import Preparation

ROUNDS = 2  # of each batch, after one to warm up; the faster one counts
WORTH = 1.03  # how much faster a larger batch must be, or it only takes memory
SAFE_SHARE = 0.8  # of the memory that is left; other shapes, and fragments, may need the rest


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchTrial:
    """One size, tried on the target's device."""

    num_tokens: int
    tokens_per_s: float
    memory_share: float  # the most, over device and host, of what was left there

    def may_double(self) -> bool:
        return 2 * self.memory_share <= SAFE_SHARE


def batch_tokens_of(preparation: Preparation, capture: LayerCapture) -> int:
    """``--batch-tokens``; for ``auto`` the fastest number of padded tokens that is safe.

    Batches of the longest rows are tried, each twice as large as the one before, until the next
    would take more than four fifths of the memory left, on device or host, or would be larger than
    a segment. The smallest is taken that is within 3 % of the fastest. ``ConfigError`` if one row
    of that length is too much.
    """
    setting = preparation.config.batch_tokens
    if setting != "auto":
        return setting
    largest = max(segment.num_tokens for segment in preparation.plan)
    row = np.array([_longest_row(preparation)])
    trial = _trial(preparation, capture, row)
    if trial is None:
        raise ConfigError(
            f"--batch-tokens auto: {preparation.devices[0]} has too little memory for one row of "
            f"{row[0, 1]} tokens; give a lower --max-seq-len, or more devices joined by +"
        )
    trials, rows = [], row
    while trial is not None:
        trials.append(trial)
        rows = np.repeat(rows, 2, axis=0)
        grows = trial.may_double() and rows[:, 1].sum() <= largest
        trial = _trial(preparation, capture, rows) if grows else None
    fastest = max(trial.tokens_per_s for trial in trials)
    return next(each.num_tokens for each in trials if WORTH * each.tokens_per_s >= fastest)


def num_buffers(num_workers: int, num_writers: int) -> int:
    """Of staging: one that a worker fills and one more, and one that a writer empties."""
    return 2 * num_workers + num_writers


def _longest_row(preparation: Preparation) -> tuple[int, int]:
    """Its row id and length."""
    survey = preparation.survey
    place = int(survey.lengths.argmax())
    return int(survey.row_ids[place]), int(survey.lengths[place])


def _trial(preparation: Preparation, capture: LayerCapture, rows: Int64Array) -> BatchTrial | None:
    """None if a device has not the memory."""
    num_tokens, device, seconds = int(rows[:, 1].sum()), preparation.devices[0], None
    try:
        with peak_memory(device) as peaks:
            seconds = batch_seconds(preparation, capture, rows)
    except torch.OutOfMemoryError:
        pass  # its traceback holds the tensors of the pass until here
    if seconds is None:
        torch.cuda.empty_cache()
        return None
    num_workers, num_writers = len(preparation.devices), preparation.config.writers
    staged = num_tokens * preparation.spec.stored_token_bytes
    if device.startswith("cuda"):
        staged = 1 << (staged - 1).bit_length()  # so torch rounds page-locked memory
    host_share = num_buffers(num_workers, num_writers) * staged / host_bytes_left()
    share = preparation.devices.count(device) * max(peak.share for peak in peaks)
    return BatchTrial(
        num_tokens=num_tokens,
        tokens_per_s=num_tokens / seconds,
        memory_share=host_share + share if device == "cpu" else max(host_share, share),
    )


def batch_seconds(preparation: Preparation, capture: LayerCapture, rows: Int64Array) -> float:
    """Seconds for one batch (row ids and lengths [N, 2]), from ids to states on the host."""
    sequences = [preparation.rows.sequence(row, length) for row, length in rows.tolist()]
    pinned = preparation.devices[0].startswith("cuda")
    num_tokens = int(rows[:, 1].sum())
    staging = StagingBuffer.allocate(preparation.spec, num_tokens, pinned=pinned)
    copies, times = CopyStream(capture.target.device), []
    for _ in range(1 + ROUNDS):
        began = time.perf_counter()
        capture_batch(capture, sequences, staging, lambda: None, copies).finish()
        times.append(time.perf_counter() - began)
    return min(times[1:])
