"""``both``: the two phases, one after the other or joined at the cache."""

import time
from typing import Any

from dflash_cache.cache import Cache, writer_lock
from dflash_cache.config import BothConfig, EvaluateConfig
from dflash_cache.errors import ConfigError
from dflash_cache.run_files import EXPORT
from dflash_cache.target import mask_token_of
from dflash_cache.train import LiveSource, held_out_rows, require_one_rank, require_tracker

from .devices import single_device
from .disk import disk_need, most_extractions
from .evaluate import evaluate
from .extract import extract_report, extracting
from .outcome import keep_outcome
from .plan import require_whole
from .preparation import (
    Preparation,
    missing_segments,
    open_matching,
    prepare,
    rows_to_be,
    spec_to_be,
)
from .progress import OnProgress, ignore
from .prompts import num_prompt_tokens
from .recipe import choose_columns, choose_mask_token
from .record import require_same_run
from .room import RollingRoom
from .start import offered_mask_token, require_same_shape
from .train import TrainingRun, train
from .waiting import TRAINING_STAGES


def both(config: BothConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Extract and train, together with ``config.overlap``; the weights are the same either way.

    Returns the report: extract {..}, train {..}, wall_s, and evaluate {..} where it ran.
    """
    began = time.perf_counter()
    require_one_rank("both")
    preparation = prepare(config.extract, spare_last=True)
    cache = open_matching(preparation)
    _require_whole_cache(preparation, cache)
    _check_training(config, preparation, cache)
    run = _overlapped if config.overlap else _in_turn
    report = run(config, preparation, cache, on_progress)
    report["wall_s"] = round(time.perf_counter() - began, 3)
    if config.evaluate:
        report["evaluate"] = evaluate(_evaluation(config), on_progress)
    return report


def _in_turn(
    config: BothConfig, preparation: Preparation, found: Cache | None, on_progress: OnProgress
) -> dict[str, Any]:
    began = time.perf_counter()
    require_whole(preparation, disk_need(preparation, found))
    with extracting(preparation, on_progress) as (cache, pipeline, extraction):
        pipeline.start()
    wall_s = time.perf_counter() - began
    report = extract_report(preparation, cache, extraction, pipeline.statistics, wall_s)
    del pipeline, extraction  # and its staging buffers, before training
    trained = train(config.train, on_progress)
    keep_outcome(config.train.out, {"extract": report})
    return {"extract": report, "train": trained}


def _overlapped(
    config: BothConfig, preparation: Preparation, found: Cache | None, on_progress: OnProgress
) -> dict[str, Any]:
    began = time.perf_counter()
    row_ids = rows_to_be(preparation, found)
    num_rows = len(row_ids) - len(held_out_rows(row_ids, config.train.holdout))
    passes = most_extractions(config.train, num_rows)
    with (
        writer_lock(config.train.out, "--out"),
        extracting(preparation, on_progress, passes) as (cache, pipeline, extraction),
    ):
        run = TrainingRun(config.train, cache)
        if extraction and isinstance(extraction.room, RollingRoom):
            extraction.room.expect(run.needs())
            run.spawn(pipeline, extraction.room, on_progress, extraction.room.enter)
        else:
            live = LiveSource(cache, extraction.committed) if extraction else cache
            run.spawn(pipeline, live, on_progress)
        pipeline.start()
    wall_s = time.perf_counter() - began
    statistics = pipeline.statistics
    others = {name: s for name, s in statistics.items() if name not in TRAINING_STAGES}
    extract_s = extraction.wall_s if extraction else 0.0
    num_evicted = extraction.num_evicted if extraction else 0
    report = {
        "extract": extract_report(preparation, cache, extraction, others, extract_s)
        | {"segments_evicted": num_evicted},
        "train": run.report(statistics, wall_s),
    }
    keep_outcome(config.train.out, report, cache)
    return report


def _require_whole_cache(preparation: Preparation, cache: Cache | None) -> None:
    """``ConfigError`` if training would wait for segments that this extraction does not make."""
    coming = {plan.index for plan in missing_segments(preparation, cache)}
    there = cache.segments.keys() if cache else set()
    num_segments = spec_to_be(preparation, cache).first_segments[-1]
    if len(coming | there) < num_segments:
        raise ConfigError(
            f"--cache {preparation.config.cache}: training needs all {num_segments} segments, and "
            f"{len(coming | there)} are there or extracted now. Leave --share out, or finish the "
            "other datasets of the cache first, with extract"
        )


def _check_training(config: BothConfig, preparation: Preparation, cache: Cache | None) -> None:
    """Let settings of phase two that cannot work fail before phase one is paid for."""
    vocab_size, shape = preparation.spec.vocab_size, preparation.target_shape
    offered = mask_token_of(preparation.target_folder, vocab_size)
    offered = offered_mask_token(config.train, offered)
    choose_mask_token(config.train, offered, vocab_size, shape.reserved_token_ids)
    if config.train.init_from is not None:
        expected = {
            "num_hidden_layers": config.train.draft_layers,
            "target_layer_ids": config.train.target_layers or preparation.spec.target_layer_ids,
            "num_target_layers": shape.num_layers,
            "hidden_size": shape.hidden_size,
        }
        require_same_shape(config.train.init_from, expected)
    device = single_device(config.train.device)
    if config.overlap and config.extract.batch_tokens == "auto" and device in preparation.devices:
        raise ConfigError(
            f"--batch-tokens auto: with --overlap training will need memory of {device} too, which "
            "no trial can know; give a number"
        )
    require_tracker(config.train)
    if config.overlap and (config.train.measure_every or config.train.keep_best):
        raise ConfigError(
            "--measure-every and --keep-best wait for held-out rows from all over the cache, so "
            "nothing would overlap; leave --overlap out, or them"
        )
    require_same_run(config.train, spec_to_be(preparation, cache))
    choose_columns(config.train, preparation.spec)
    held_out = held_out_rows(rows_to_be(preparation, cache), config.train.holdout)
    if config.evaluate:
        num_prompt_tokens(
            _evaluation(config), shape.max_position_embeddings, config.train.block_size
        )
        if not len(held_out):
            raise ConfigError("--evaluate needs held-out rows; see --holdout")


def _evaluation(config: BothConfig) -> EvaluateConfig:
    extract = config.extract
    return EvaluateConfig(
        target=extract.target,
        drafter=(config.train.out / EXPORT,),
        data=extract.data,
        split=extract.split,
        revision=extract.revision,
        trust_remote_code=extract.trust_remote_code,
        device=config.train.device,
        dtype=extract.dtype,
        on_bad_row=extract.on_bad_row,
        untrained=True,
    )
