"""``evaluate``: acceptance length, losslessness and speed, measured by decoding."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dflash_cache.cache import CacheSpec, require_same_identity
from dflash_cache.config import EvaluateConfig
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.export import load_drafter, load_training
from dflash_cache.drafter.generation import Decoded, DrafterProposer, Proposer, decode
from dflash_cache.drafter.lookup import PromptLookup
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import CacheMismatchError, ConfigError
from dflash_cache.target import (
    LayerCapture,
    Target,
    TargetDecoder,
    TargetShape,
    identify_target,
    resolve_target,
    stop_token_ids,
)

from .devices import default_dtype, single_device
from .progress import OnProgress, Progress, ignore
from .prompts import choose_prompts


def evaluate(config: EvaluateConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Decode prompts greedily by the target alone, with the drafter and with prompt lookup.

    Returns the report: acceptance_length (pooled: tokens over verify steps), lossless (share of
    outputs equal to the target's own), speedup, prompts, held_out (whether the training data is
    known not to hold them), tokens, prompt_lookup, and untrained on request.
    """
    drafter_config = DrafterConfig.load(config.drafter)
    training = load_training(config.drafter)
    folder = resolve_target(config.target, config.revision)
    shape = TargetShape.load(folder, trust_remote_code=config.trust_remote_code)
    _check_target(config, drafter_config, shape, training)
    prompts = choose_prompts(config, drafter_config, training)
    device = single_device(config.device)
    dtype = default_dtype(device, config.dtype)
    target = Target.load(
        folder, dtype=dtype, device=device, trust_remote_code=config.trust_remote_code
    )
    capture = LayerCapture(target, drafter_config.target_layer_ids)
    bench = _Bench(config, capture, drafter_config.block_size, prompts.token_ids, on_progress)
    drafter = load_drafter(config.drafter, getattr(torch, dtype)).to(device)
    bench.warm_up(drafter)
    plain, plain_s = bench.run(None)
    drafted, drafted_s = bench.run(lambda: bench.proposer(drafter))
    same = [a.tokens == b.tokens for a, b in zip(plain, drafted, strict=True)]
    report: dict[str, Any] = {
        "acceptance_length": _acceptance_length(drafted),
        "lossless": sum(same) / len(same),
        "speedup": round(plain_s / drafted_s, 4),
        "prompts": len(prompts.token_ids),
        "held_out": prompts.held_out,
        "tokens": sum(len(each.tokens) for each in drafted),
    }
    kinds: dict[str, Callable[[], Proposer]] = {"prompt_lookup": PromptLookup}
    if config.untrained:
        fresh = DFlashDrafter.fresh(drafter_config, config.seed).eval().to(drafter.fc.weight)
        kinds["untrained"] = lambda: bench.proposer(fresh)
    for name, make in kinds.items():
        report[name] = {"acceptance_length": _acceptance_length(bench.run(make)[0])}
    return report


@dataclass(slots=True)
class _Bench:
    """Decodes all prompts in one way after another."""

    config: EvaluateConfig
    capture: LayerCapture
    block_size: int
    prompts: Sequence[Sequence[int]]
    on_progress: OnProgress
    num_decoded: int = 0

    def proposer(self, drafter: DFlashDrafter) -> DrafterProposer:
        target = self.capture.target
        return DrafterProposer(drafter, target.embedding, target.head)

    def warm_up(self, drafter: DFlashDrafter) -> None:
        """Decode a few tokens untimed, so that no way of decoding pays for first calls."""
        proposer = self.proposer(drafter)
        decode(TargetDecoder(self.capture), self.prompts[0], proposer=proposer, new_tokens=4)

    def run(self, make: Callable[[], Proposer] | None) -> tuple[list[Decoded], float]:
        """Decode every prompt; returns the outputs and the seconds spent decoding."""
        stops = stop_token_ids(self.capture.target.folder)
        decoded, wall_s = [], 0.0
        for prompt in self.prompts:
            began = time.perf_counter()
            decoded.append(
                decode(
                    TargetDecoder(self.capture),
                    prompt,
                    proposer=make() if make else None,
                    new_tokens=self.config.new_tokens,
                    block_size=self.block_size,
                    stop_ids=stops,
                )
            )
            wall_s += time.perf_counter() - began
            self.num_decoded += 1
            total = len(self.prompts) * (4 if self.config.untrained else 3)
            self.on_progress(
                Progress(phase="evaluate", done=self.num_decoded, total=total, unit="decodings")
            )
        return decoded, wall_s


def _acceptance_length(decoded: Sequence[Decoded]) -> float:
    """All committed tokens over all verify steps."""
    steps = [length for each in decoded for length in each.acceptance_lengths]
    return round(sum(steps) / len(steps), 4) if steps else 0.0


def require_dense(target: str, *, hybrid: bool) -> None:
    """``ConfigError`` for a target whose decoding state cannot be rolled back."""
    if hybrid:
        raise ConfigError(
            f"--target {target} has linear-attention layers, whose state cannot be rolled back "
            "yet; evaluate takes targets of attention layers only"
        )


def _check_target(
    config: EvaluateConfig,
    drafter: DrafterConfig,
    shape: TargetShape,
    training: Mapping[str, Any],
) -> None:
    require_dense(config.target, hybrid=shape.hybrid)
    found = (shape.num_layers, shape.hidden_size)
    expected = (drafter.num_target_layers, drafter.hidden_size)
    if found != expected:
        raise CacheMismatchError(
            f"--drafter {config.drafter} is for a target of {expected[0]} layers and hidden size "
            f"{expected[1]}; --target {config.target} has {found[0]} and {found[1]}"
        )
    if training:
        require_same_identity(
            identify_target(config.target, config.revision),
            CacheSpec.from_dict(training["cache"]),
            what=f"--drafter {config.drafter} was trained for another target than {config.target}",
            remedy="Give the target that the drafter was trained for",
        )
