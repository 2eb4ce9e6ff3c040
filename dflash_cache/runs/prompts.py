"""Which prompts drafters are evaluated on: never rows that they are known to be trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from dflash_cache.cache import CacheSpec
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import Survey, TokenRows, find_rows, survey
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.export import load_training
from dflash_cache.errors import ConfigError, DataError
from dflash_cache.run_files import TRAINING
from dflash_cache.shapes import misfit
from dflash_cache.types import Int64Array, RowContent

NO_CATEGORY = "(none)"


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterFolder:
    """A drafter that is evaluated: its shape, and what its export says of its making."""

    folder: Path
    config: DrafterConfig
    training: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path) -> "DrafterFolder":
        training = load_training(folder)
        if training and (fault := misfit(training, {"cache": dict, "held_out_rows": [int]})):
            raise DataError(f"{folder / TRAINING} is damaged: {fault}. Export the drafter again")
        return cls(folder=folder, config=DrafterConfig.load(folder), training=training)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Token ids to decode from, and whether no training data is known to hold them.

    ``categories`` has each prompt's, if the dataset has a column ``category``, else it is empty.
    """

    token_ids: list[list[int]]
    held_out: bool
    categories: list[str]


def choose_prompts(config: EvaluateConfig, drafters: Sequence[DrafterFolder]) -> Prompts:
    """The tokens before the first supervised one, of the first usable rows.

    Of the dataset that a drafter was trained from only its held-out rows are taken; of one that
    holds some of these, such as a part of it, only these.
    ``ConfigError`` if no row is left.
    """
    num_positions = min(each.config.max_position_embeddings for each in drafters)
    block_size = max(each.config.block_size for each in drafters)
    num_tokens = num_prompt_tokens(config, num_positions, block_size)
    specs = [CacheSpec.from_dict(each.training["cache"]) for each in drafters if each.training]
    vocab_size = min(each.config.vocab_size for each in drafters)
    surveys = {}
    for limit in {None, *(part.limit for spec in specs for part in spec.parts)}:
        surveys[limit] = survey(
            TokenRows.open(config.data, split=config.split, limit=limit),
            vocab_size=vocab_size,
            max_seq_len=num_tokens,
            too_long="truncate",
            on_bad_row=config.on_bad_row,
        )
    rows = TokenRows.open(config.data, split=config.split)
    known = [_held_out(each, surveys, rows) for each in drafters]
    held_out = [row_ids for row_ids in known if row_ids is not None]
    row_ids = reduce(np.intersect1d, held_out, surveys[None].row_ids)
    if not len(row_ids):
        raise ConfigError(f"--data {config.data}: no held-out row to evaluate on; see --holdout")
    token_ids = []
    chosen = row_ids[: config.prompts].tolist()
    for row in chosen:
        sequence = rows.sequence(row, num_tokens)
        first_supervised = int(sequence.loss_mask.argmax())
        token_ids.append(sequence.input_ids[: max(1, first_supervised)].tolist())
    categories = [rows.category(row) for row in chosen]
    return Prompts(
        token_ids=token_ids,
        held_out=len(held_out) == len(drafters),
        categories=[name or NO_CATEGORY for name in categories] if any(categories) else [],
    )


def num_prompt_tokens(config: EvaluateConfig, num_positions: int, block_size: int) -> int:
    """The longest prompt that leaves room for new tokens and a block; ``ConfigError`` if none."""
    num_tokens = num_positions - config.new_tokens - block_size
    if num_tokens < 1:
        raise ConfigError(
            f"--new-tokens {config.new_tokens}: the target has only {num_positions} positions, and "
            f"a block takes {block_size}"
        )
    return num_tokens


def _held_out(
    drafter: DrafterFolder, surveys: Mapping[int | None, Survey], rows: TokenRows
) -> Int64Array | None:
    """The rows kept from ``drafter``'s training; None if the data shares none with it."""
    if not drafter.training:
        return None
    spec = CacheSpec.from_dict(drafter.training["cache"])
    held_out = np.array(drafter.training["held_out_rows"], np.int64)
    for part, first_row in zip(spec.parts, spec.first_rows, strict=False):
        found = surveys[part.limit]
        if found.fingerprint == part.dataset_fingerprint:
            return np.intersect1d(found.row_ids, held_out - first_row)
    wanted = {RowContent(**each) for each in drafter.training.get("held_out_content", [])}
    shared = [
        find_rows(rows, surveys[None], wanted, max_seq_len=max_seq_len)
        for max_seq_len in {part.max_seq_len for part in spec.parts}
    ]
    row_ids = np.unique(np.concatenate(shared))
    return row_ids if len(row_ids) else None
