"""The processes that train one drafter together. Nothing else touches ``torch.distributed``.

torchrun starts one process a device and tells each its place by the environment. Gradients are
summed on the device, everything else on the CPU, over gloo: it notices at once when the process
at the other end is gone.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed, nn

from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.errors import ConfigError, RankError
from dflash_cache.pipeline import StageStuckError

T = TypeVar("T")

# How long a rank waits for the others: longer than a checkpoint takes to write, no longer than
# somebody looks at a run that stands still.
TIMEOUT = timedelta(minutes=10)
BUCKET_ELEMENTS = 1 << 24  # 64 MiB of float32


def num_ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The number of this process among those of its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def num_local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_first_rank() -> bool:
    """Whether this process is the one that writes and reports."""
    return num_ranks() == 1 or os.environ.get("RANK") == "0"


def require_one_rank(command: str) -> None:
    if num_ranks() > 1:
        raise ConfigError(
            f"{command} runs in one process, with a thread a device; start it without torchrun. "
            "Only train takes several processes"
        )


class Ranks:
    """The place of this process among all: ``rank`` of ``size``. Alone, nothing waits or adds up.

    Every rank calls the same methods in the same order. Each of them, but ``sum_gradients``, is
    a border first: where one rank has left, all raise ``RankError`` instead of waiting for it.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size
        self._over = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def border(self) -> None:
        """Wait for all ranks."""
        if self.size > 1:
            left = self._meet(leaving=False)
            if left:
                raise RankError(
                    f"rank {left[0]} of {self.size} failed or was stopped and says why; the same "
                    "command continues from the newest checkpoint"
                )

    def leave(self) -> None:
        """Let the others know, at their next border, that this rank stops; waits until then."""
        if self.size > 1 and not self._over:
            try:
                self._meet(leaving=True)
            except RankError:
                self._over = True  # nobody is left to tell

    def _meet(self, *, leaving: bool) -> list[int]:
        """The ranks that leave here."""
        leavers = torch.zeros(self.size, dtype=torch.int64)
        leavers[self.rank] = leaving
        self._add_up(leavers)
        left = leavers.nonzero().flatten().tolist()
        self._over = bool(left)
        return left

    def sum(self, figures: torch.Tensor) -> None:
        """Replace ``figures``, on the CPU, by their sum over all ranks."""
        self.border()
        if self.size > 1:
            self._add_up(figures)

    def sum_accuracy(self, accuracy: BlockAccuracy) -> None:
        """Replace counts by their sum over all ranks: whole numbers, so exact."""
        counts = torch.tensor([accuracy.accepted, accuracy.blocks], dtype=torch.float64)
        figures = torch.cat([counts, accuracy.correct, accuracy.supervised])
        self.sum(figures)
        accuracy.accepted, accuracy.blocks = float(figures[0]), int(figures[1])
        accuracy.correct, accuracy.supervised = figures[2:].chunk(2)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all ranks; one that is missing counts as zeros.

        Once an optimizer step, after the last micro-batch, in flat buckets. Overlapping this with
        the backward pass, as DDP does, would gain little: a step's forward and backward take
        seconds, the sum of a drafter's gradients some tens of milliseconds. And DDP averages,
        which is wrong here: ranks have different weights in the one mean.
        """
        if self.size == 1:
            return
        bucket: list[torch.Tensor] = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET_ELEMENTS:
                self._add_up_bucket(bucket)
                bucket = []
        if bucket:
            self._add_up_bucket(bucket)

    def _add_up_bucket(self, bucket: list[torch.Tensor]) -> None:
        flat = torch.cat([gradient.flatten() for gradient in bucket])
        self._add_up(flat)
        parts = torch.split(flat, [gradient.numel() for gradient in bucket])
        for gradient, part in zip(bucket, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _add_up(self, tensor: torch.Tensor) -> None:
        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            self._over = True
            raise RankError(
                f"rank {self.rank} of {self.size} lost the others; one of them was killed or "
                f"cannot be reached ({error}); the same command continues from the newest "
                "checkpoint"
            ) from error

    def all(self, value: T) -> list[T]:
        """What each rank gave, by rank."""
        self.border()
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values


ALONE = Ranks()


@contextmanager
def joined_ranks(device: str) -> Iterator[Ranks]:
    """Join the other processes that torchrun started; one that fails inside lets them know.

    ``device`` is this rank's own. Leaving waits until all ranks are done.
    """
    if num_ranks() == 1:
        yield ALONE
        return
    backend = "gloo"
    if device != "cpu":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    distributed.init_process_group(backend, timeout=TIMEOUT)
    ranks = Ranks(distributed.get_rank(), distributed.get_world_size())
    try:
        yield ranks
        ranks.border()
    except StageStuckError:  # its thread may be waiting for the others: a second one must not
        raise
    except BaseException:
        ranks.leave()
        raise
    distributed.destroy_process_group()
