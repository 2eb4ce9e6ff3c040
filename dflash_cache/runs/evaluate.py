"""``evaluate``: acceptance length, losslessness and speed, measured by decoding."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dflash_cache.cache import CacheSpec, require_same_identity
from dflash_cache.config import EvaluateConfig
from dflash_cache.data import TokenRows, survey
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


def evaluate(config: EvaluateConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Decode prompts greedily by the target alone, with the drafter and with prompt lookup.

    Returns the report: acceptance_length (pooled: tokens over verify steps), lossless (share of
    outputs equal to the target's own), speedup, prompts, tokens, prompt_lookup, and untrained on
    request.
    """
    drafter_config = DrafterConfig.load(config.drafter)
    folder = resolve_target(config.target, config.revision)
    _check_target(config, drafter_config, TargetShape.load(
        folder, trust_remote_code=config.trust_remote_code
    ))  # fmt: skip
    prompts = _prompts(config, drafter_config)
    device = single_device(config.device)
    dtype = default_dtype(device, config.dtype)
    target = Target.load(
        folder, dtype=dtype, device=device, trust_remote_code=config.trust_remote_code
    )
    bench = _Bench(config, target, drafter_config, prompts, on_progress)
    drafter = load_drafter(config.drafter, getattr(torch, dtype)).to(device)
    kinds: dict[str, Callable[[], Proposer]] = {
        "drafter": lambda: bench.proposer(drafter),
        "prompt_lookup": PromptLookup,
    }
    if config.untrained:
        torch.manual_seed(config.seed)
        fresh = DFlashDrafter(drafter_config).to(device, getattr(torch, dtype)).eval()
        kinds["untrained"] = lambda: bench.proposer(fresh)
    plain, plain_s = bench.run(None)
    report: dict[str, Any] = {}
    for number, (name, make) in enumerate(kinds.items(), start=1):
        decoded, wall_s = bench.run(make, runs_before=number)
        figures = {"acceptance_length": _acceptance_length(decoded)}
        if name == "drafter":
            same = [a.tokens == b.tokens for a, b in zip(plain, decoded, strict=True)]
            report |= figures | {
                "lossless": sum(same) / len(same),
                "speedup": round(plain_s / wall_s, 4),
                "prompts": len(prompts),
                "tokens": sum(len(each.tokens) for each in decoded),
            }
        else:
            report[name] = figures
    return report


@dataclass(slots=True)
class _Bench:
    """Decodes all prompts in one way after another."""

    config: EvaluateConfig
    target: Target
    drafter_config: DrafterConfig
    prompts: Sequence[Sequence[int]]
    on_progress: OnProgress

    def proposer(self, drafter: DFlashDrafter) -> DrafterProposer:
        embedding = self.target.embedding
        return DrafterProposer(drafter, embedding, self.target.head)

    def run(
        self, make: Callable[[], Proposer] | None, runs_before: int = 0
    ) -> tuple[list[Decoded], float]:
        """Decode every prompt; returns the outputs and the seconds spent decoding."""
        stops = stop_token_ids(self.target.folder)
        capture = LayerCapture(self.target, self.drafter_config.target_layer_ids)
        decoded, wall_s = [], 0.0
        runs = 3 if self.config.untrained else 2
        for index, prompt in enumerate(self.prompts):
            began = time.perf_counter()
            decoded.append(
                decode(
                    TargetDecoder(capture),
                    prompt,
                    proposer=make() if make else None,
                    new_tokens=self.config.new_tokens,
                    block_size=self.drafter_config.block_size,
                    stop_ids=stops,
                )
            )
            wall_s += time.perf_counter() - began
            done = runs_before * len(self.prompts) + index + 1
            total = (runs + 1) * len(self.prompts)
            self.on_progress(Progress(phase="evaluate", done=done, total=total, unit="prompts"))
        capture.close()
        return decoded, wall_s


def _acceptance_length(decoded: Sequence[Decoded]) -> float:
    """All committed tokens over all verify steps."""
    steps = [length for each in decoded for length in each.acceptance_lengths]
    return round(sum(steps) / len(steps), 4) if steps else 0.0


def _check_target(config: EvaluateConfig, drafter: DrafterConfig, shape: TargetShape) -> None:
    if shape.hybrid:
        raise ConfigError(
            f"--target {config.target} has linear-attention layers, whose state cannot be rolled "
            "back yet; evaluate takes targets of attention layers only"
        )
    found = (shape.num_layers, shape.hidden_size)
    expected = (drafter.num_target_layers, drafter.hidden_size)
    if found != expected:
        raise CacheMismatchError(
            f"--drafter {config.drafter} is for a target of {expected[0]} layers and hidden size "
            f"{expected[1]}; --target {config.target} has {found[0]} and {found[1]}"
        )


def _prompts(config: EvaluateConfig, drafter: DrafterConfig) -> list[list[int]]:
    """The tokens before the first supervised one, of held-out rows if the drafter saw the data."""
    training = load_training(config.drafter)
    spec = CacheSpec.from_dict(training["cache"]) if training else None
    # The first rows that extraction was limited to, so that the training data is known again.
    rows = TokenRows.open(config.data, split=config.split, limit=spec.limit if spec else None)
    limit = drafter.max_position_embeddings - config.new_tokens - drafter.block_size
    found = survey(
        rows, vocab_size=drafter.vocab_size, max_seq_len=max(1, limit), too_long="truncate"
    )
    row_ids = found.row_ids
    if spec:
        require_same_identity(
            identify_target(config.target, config.revision),
            spec,
            what=f"--drafter {config.drafter} was trained for another target than {config.target}",
            remedy="Give the target that the drafter was trained for",
        )
        if spec.dataset_fingerprint == found.fingerprint:
            row_ids = np.intersect1d(row_ids, np.array(training["held_out_rows"], np.int64))
    prompts = []
    for row in row_ids[: config.prompts].tolist():
        sequence = rows.sequence(row, max(1, limit))
        first = int(sequence.loss_mask.argmax())
        prompts.append(sequence.input_ids[: max(1, first)].tolist())
    if not prompts:
        raise ConfigError(f"--data {config.data}: no held-out row to evaluate on; see --holdout")
    return prompts
