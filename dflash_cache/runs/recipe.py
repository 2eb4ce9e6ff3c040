"""What the settings of a run ask of the cache and of the drafter's shape."""

from collections.abc import Collection
from dataclasses import replace

from dflash_cache.cache import CacheSpec, TargetParts
from dflash_cache.config import TrainConfig
from dflash_cache.drafter.config import FULL, SLIDING, DrafterConfig
from dflash_cache.errors import ConfigError
from dflash_cache.target import reserved_tokens

from .start import offered_mask_token


def with_window(drafter: DrafterConfig, window: int | None) -> DrafterConfig:
    """``drafter`` with a window of so many tokens in all layers but the last."""
    if window is None:
        return drafter
    sliding = (SLIDING,) * (drafter.num_hidden_layers - 1)
    return replace(drafter, layer_types=(*sliding, FULL), sliding_window=window)


def choose_columns(config: TrainConfig, spec: CacheSpec) -> tuple[int, ...] | None:
    """Which states of a token training reads, by place in the cache; None for all there are.

    ``ConfigError`` for layers that the cache lacks, and for a loss that needs what it lacks.
    """
    cached = spec.target_layer_ids
    wanted = config.target_layers or cached
    if list(wanted) != sorted(set(wanted) & set(cached)):
        raise ConfigError(
            f"--target-layers {','.join(map(str, wanted))}: the cache has layers "
            f"{','.join(map(str, cached))}; name some of them, ascending, or extract again"
        )
    if config.loss == "kl" and not spec.keep_last:
        raise ConfigError(
            "--loss kl needs the target's last states, which the cache lacks; extract with "
            "--keep-last into another folder"
        )
    last = (len(cached),) if config.loss == "kl" else ()
    columns = (*(cached.index(layer) for layer in wanted), *last)
    return None if len(columns) == spec.num_states else columns


def choose_mask_token(
    config: TrainConfig, offered: int | None, vocab_size: int, reserved: Collection[int]
) -> int:
    """The mask token: named by the user, else offered by the target's tokenizer, else refused.

    ``reserved`` are the ids of the target's own pad, begin and end tokens, which text may hold.
    """
    mask = offered if config.mask_token_id is None else config.mask_token_id
    if mask is None:
        raise ConfigError(
            "the target's tokenizer has no mask token and its embedding no unused row; choose an "
            f"id below {vocab_size} that the text does not use, with --mask-token-id"
        )
    if not 0 <= mask < vocab_size:
        raise ConfigError(
            f"--mask-token-id {mask}: the target's embedding has rows 0..{vocab_size - 1}"
        )
    if mask in reserved:
        raise ConfigError(
            f"--mask-token-id {mask}: it is the target's pad, begin or end token; choose an id "
            "that the text does not use"
        )
    return mask


def drafter_config(config: TrainConfig, spec: CacheSpec, parts: TargetParts) -> DrafterConfig:
    vocab_size = len(parts.embedding)
    drafter = DrafterConfig.for_target(
        parts.config,
        vocab_size=vocab_size,
        num_layers=config.draft_layers,
        block_size=config.block_size,
        mask_token_id=choose_mask_token(
            config,
            offered_mask_token(config, parts.mask_token_id),
            vocab_size,
            reserved_tokens(parts.config),
        ),
        target_layer_ids=config.target_layers or spec.target_layer_ids,
    )
    if config.block_size > drafter.max_position_embeddings:
        raise ConfigError(
            f"--block-size {config.block_size}: the target has only "
            f"{drafter.max_position_embeddings} positions"
        )
    return with_window(drafter, config.sliding_window)
