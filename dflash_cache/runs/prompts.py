"""Which prompts a drafter is evaluated on: never rows that it was trained on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dflash_cache.cache import CacheSpec
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import Survey, TokenRows, survey
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """Token ids to decode from, and whether the training data is known not to hold them."""

    token_ids: list[list[int]]
    held_out: bool


def choose_prompts(
    config: EvaluateConfig, drafter: DrafterConfig, training: Mapping[str, Any]
) -> Prompts:
    """The tokens before the first supervised one, of the first usable rows.

    ``training`` is what the export says of its making: of the very dataset that it names only the
    held-out rows are taken. ``ConfigError`` if no row is left.
    """
    num_tokens = num_prompt_tokens(config, drafter.max_position_embeddings, drafter.block_size)
    rows, found = _survey(config, drafter, num_tokens, limit=None)
    row_ids, held_out = found.row_ids, False
    if training:
        spec = CacheSpec.from_dict(training["cache"])
        held_out_rows = np.array(training["held_out_rows"], np.int64)
        for part, first_row in zip(spec.parts, spec.first_rows, strict=False):
            _, same = _survey(config, drafter, num_tokens, limit=part.limit)
            if same.fingerprint == part.dataset_fingerprint:
                held_out = True
                row_ids = np.intersect1d(same.row_ids, held_out_rows - first_row)
    if not len(row_ids):
        raise ConfigError(f"--data {config.data}: no held-out row to evaluate on; see --holdout")
    token_ids = []
    for row in row_ids[: config.prompts].tolist():
        sequence = rows.sequence(row, num_tokens)
        first_supervised = int(sequence.loss_mask.argmax())
        token_ids.append(sequence.input_ids[: max(1, first_supervised)].tolist())
    return Prompts(token_ids=token_ids, held_out=held_out)


def num_prompt_tokens(config: EvaluateConfig, num_positions: int, block_size: int) -> int:
    """The longest prompt that leaves room for new tokens and a block; ``ConfigError`` if none."""
    num_tokens = num_positions - config.new_tokens - block_size
    if num_tokens < 1:
        raise ConfigError(
            f"--new-tokens {config.new_tokens}: the target has only {num_positions} positions, and "
            f"a block takes {block_size}"
        )
    return num_tokens


def _survey(
    config: EvaluateConfig, drafter: DrafterConfig, num_tokens: int, limit: int | None
) -> tuple[TokenRows, Survey]:
    rows = TokenRows.open(config.data, split=config.split, limit=limit)
    vocab_size = drafter.vocab_size
    return rows, survey(rows, vocab_size=vocab_size, max_seq_len=num_tokens, too_long="truncate")
