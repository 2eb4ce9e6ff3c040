"""Teacher-forced accuracy on the rows kept from training."""

from collections.abc import Callable, Iterable

from dflash_cache.drafter.loss import BlockAccuracy
from dflash_cache.types import Int64Array

from .batches import SegmentSource, pack, whole_segment
from .step import DrafterStep

# The same anchors whatever run and epoch: figures of two drafters can be compared.
_KEY = (0, 0)


def measure_held_out(
    step: DrafterStep,
    source: SegmentSource,
    segments: Iterable[tuple[int, Int64Array]],
    batch_size: int,
    anchors: int,
    check: Callable[[], None],
) -> BlockAccuracy:
    """Accuracy over the held-out rows of ``segments`` (segment index, rows).

    ``check`` is called for every batch and may raise to abandon it.
    """
    accuracy = BlockAccuracy.zero(step.drafter.config.block_size)
    for index, rows in segments:
        sequences = whole_segment(source.read(index, rows))
        for first in range(0, len(sequences), batch_size):
            check()
            batch = pack(sequences[first : first + batch_size], anchors, _KEY)
            step.add_accuracy(batch, accuracy)
    return accuracy
