"""Batches are made ready off the training thread, and no stage is left behind."""

import threading
from dataclasses import replace
from itertools import islice

import torch

from dflash_cache.drafter.attention import TiledAttention
from dflash_cache.pipeline import Pipeline
from dflash_cache.train import Position, prepare_ahead
from dflash_cache.train.batches import TrainingBatch
from dflash_cache.train.prepared import PreparedBatch
from tests.support.drafters import draft_batch, drafter_config, drafter_step
from tests.support.threads import no_thread_left


def test_blocks_and_masks_are_planned_by_the_stage_before_training(tmp_path):
    step = drafter_step(tmp_path, drafter_config())
    threads = []

    def prepare(batch):
        threads.append(threading.current_thread().name)
        return step.prepare(batch)

    batch = draft_batch([9, 6], [[1, 4], [2]])
    item = TrainingBatch(batch=batch, position=Position(row=2))
    with no_thread_left(), Pipeline("test") as pipeline:
        packed = pipeline.source("packed", [item] * 9)
        ready = prepare_ahead(pipeline, packed, prepare, torch.device("cpu"))
        pipeline.start()
        taken = list(islice(ready, 3))
        ready.abort()
    assert set(threads) == {"test/prepare"}
    assert all(isinstance(each.batch, PreparedBatch) for each in taken)
    assert taken[0].position == item.position
    assert isinstance(taken[0].batch.attention, TiledAttention)
    plain = drafter_step(tmp_path, drafter_config()).step([batch])
    assert step.step([taken[0].batch]) == plain


def test_a_prepared_batch_is_not_planned_again(tmp_path):
    step = drafter_step(tmp_path, drafter_config())
    prepared = step.prepare(draft_batch([9], [[1, 4]]))
    assert step.prepare(prepared) is prepared
    assert replace(prepared, row_ids=(7,)).row_ids == (7,)
