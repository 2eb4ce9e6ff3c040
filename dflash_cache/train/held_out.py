"""Teacher-forced accuracy on the rows kept from training."""

from collections.abc import Iterable

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
) -> BlockAccuracy:
    """Accuracy over the held-out rows of ``segments`` (segment index, rows)."""
    accuracy = BlockAccuracy.zero(step.drafter.config.block_size)
    for index, rows in segments:
        sequences = whole_segment(source.read(index, rows))
        batches = [
            pack(sequences[first : first + batch_size], anchors, _KEY)
            for first in range(0, len(sequences), batch_size)
        ]
        accuracy.merge(step.accuracy(batches))
    return accuracy
