"""Which prompts a drafter is evaluated on: never rows that it was trained on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dflash_cache.cache import CacheSpec
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import Survey, TokenRows, survey
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.errors import ConfigError


def choose_prompts(
    config: EvaluateConfig, drafter: DrafterConfig, training: Mapping[str, Any]
) -> list[list[int]]:
    """The tokens before the first supervised one, of the first usable rows.

    ``training`` is what the export says of its making: of the dataset that it names only the
    held-out rows are taken. ``ConfigError`` if no row is left.
    """
    num_tokens = drafter.max_position_embeddings - config.new_tokens - drafter.block_size
    if num_tokens < 1:
        raise ConfigError(
            f"--new-tokens {config.new_tokens}: the target has only "
            f"{drafter.max_position_embeddings} positions"
        )
    rows, found = _survey(config, drafter, num_tokens, limit=None)
    row_ids = found.row_ids
    if training:
        spec = CacheSpec.from_dict(training["cache"])
        _, trained = _survey(config, drafter, num_tokens, limit=spec.limit)
        if trained.fingerprint == spec.dataset_fingerprint:
            row_ids = np.intersect1d(trained.row_ids, np.array(training["held_out_rows"], np.int64))
    if not len(row_ids):
        raise ConfigError(f"--data {config.data}: no held-out row to evaluate on; see --holdout")
    prompts = []
    for row in row_ids[: config.prompts].tolist():
        sequence = rows.sequence(row, num_tokens)
        first_supervised = int(sequence.loss_mask.argmax())
        prompts.append(sequence.input_ids[: max(1, first_supervised)].tolist())
    return prompts


def _survey(
    config: EvaluateConfig, drafter: DrafterConfig, num_tokens: int, limit: int | None
) -> tuple[TokenRows, Survey]:
    rows = TokenRows.open(config.data, split=config.split, limit=limit)
    vocab_size = drafter.vocab_size
    return rows, survey(rows, vocab_size=vocab_size, max_seq_len=num_tokens, too_long="truncate")
