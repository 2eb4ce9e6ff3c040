"""The bench of ``evaluate``: the same prompts decoded in several ways, turn by turn."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_cache.config import EvaluateConfig
from dflash_cache.drafter.choice import Choice, Greedy, Sampled
from dflash_cache.drafter.generation import Decoded, DecodingTarget, Limits, Proposer, decode
from dflash_cache.target import BatchedDecoder, LayerCapture, TargetDecoder, stop_token_ids

from .progress import OnProgress, Progress
from .prompts import Prompts

WARM_UP_TOKENS = 4


@dataclass(slots=True)
class Way:
    """One way to decode, what came of it and the seconds it took; without ``make`` no drafts."""

    capture: LayerCapture
    make: Callable[[], Proposer] | None = None
    block_size: int = 2
    decoded: list[Decoded] = field(default_factory=list)
    wall_s: float = 0.0

    @property
    def acceptance_length(self) -> float:
        """All committed tokens over all verify steps."""
        return _acceptance_length(self.decoded)

    def speedup(self, alone: "Way") -> float:
        return round(alone.wall_s / self.wall_s, 4)

    def by_category(self, categories: Sequence[str]) -> dict[str, dict[str, Any]]:
        """acceptance_length, prompts and tokens of each category, in order of appearance."""
        groups: dict[str, list[Decoded]] = {}
        for name, decoded in zip(categories, self.decoded, strict=True):
            groups.setdefault(name, []).append(decoded)
        return {
            name: {
                "acceptance_length": _acceptance_length(group),
                "prompts": len(group),
                "tokens": sum(len(each.tokens) for each in group),
            }
            for name, group in groups.items()
        }


class Bench:
    """Decodes all prompts in all ways.

    A batch is decoded in one way after another: what else the machine does meets all ways alike.
    """

    def __init__(self, config: EvaluateConfig, prompts: Prompts, ways: Sequence[Way]) -> None:
        self._config = config
        self._prompts = prompts.token_ids
        self._categories = prompts.categories
        self._ways = ways
        self._stop_ids = stop_token_ids(ways[0].capture.target.folder)

    def run(self, on_progress: OnProgress) -> None:
        """Fill the ways' outputs and seconds."""
        total = len(self._prompts) * len(self._ways)
        size, num_decoded = self._config.batch_size, 0
        for way in self._ways:  # untimed, so that no way pays for first calls
            self._decode(way, range(min(size, len(self._prompts))), WARM_UP_TOKENS)
        for first in range(0, len(self._prompts), size):
            indices = range(first, min(first + size, len(self._prompts)))
            for way in self._ways:
                began = time.perf_counter()
                way.decoded += self._decode(way, indices, self._config.new_tokens)
                way.wall_s += time.perf_counter() - began
                num_decoded += len(indices)
                on_progress(
                    Progress(phase="evaluate", done=num_decoded, total=total, unit="decodings")
                )

    def _decode(self, way: Way, indices: Sequence[int], new_tokens: int) -> list[Decoded]:
        alone = self._config.batch_size == 1
        target: DecodingTarget = (TargetDecoder if alone else BatchedDecoder)(way.capture)
        return decode(
            target,
            [self._prompts[index] for index in indices],
            proposer=way.make() if way.make else None,
            limits=Limits(
                new_tokens=new_tokens, block_size=way.block_size, stop_ids=self._stop_ids
            ),
            choices=[self._choice(index) for index in indices],
        )

    def _choice(self, index: int) -> Choice:
        if not self._config.temperature:
            return Greedy()
        return Sampled(self._config.temperature, seed=self._config.seed, sequence=index)

    def figures(self, way: Way, alone: Way) -> dict[str, Any]:
        """What is reported of a drafter, ``alone`` being the target without one."""
        figures: dict[str, Any] = {
            "acceptance_length": way.acceptance_length,
            "lossless": None,
            "speedup": way.speedup(alone),
            "tokens": sum(len(each.tokens) for each in way.decoded),
        }
        if not self._config.temperature:
            mismatches = self._mismatches(way, alone)
            figures["lossless"] = 1 - len(mismatches) / len(way.decoded)
            figures["mismatches"] = mismatches
        if self._categories:
            figures["by_category"] = way.by_category(self._categories)
        return figures

    def _mismatches(self, way: Way, alone: Way) -> list[dict[str, Any]]:
        """Where outputs leave the target's own: {prompt, position, gap}.

        ``position`` counts new tokens from 0. ``gap`` is the lead of the target's first choice
        over its second there, in logits, token by token: next to nothing where a pass over a block
        rounds differently.
        """
        found = []
        for index, (own, other) in enumerate(zip(alone.decoded, way.decoded, strict=True)):
            if own.tokens == other.tokens:
                continue
            pairs = zip(own.tokens, other.tokens, strict=False)
            position = next(place for place, (a, b) in enumerate(pairs) if a != b)
            gap = _gap(alone.capture, self._prompts[index], own.tokens[:position])
            found.append({"prompt": index, "position": position, "gap": gap})
        return found


def _acceptance_length(decoded: Sequence[Decoded]) -> float:
    steps = [length for each in decoded for length in each.acceptance_lengths]
    return round(sum(steps) / len(steps), 4) if steps else 0.0


def _gap(capture: LayerCapture, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    """Between the target's two likeliest next tokens, decoded as it decodes alone."""
    target = TargetDecoder(capture)
    ((logits, _),) = target.forward([prompt])
    for token in tokens:
        ((logits, _),) = target.forward([[token]])
    first, second = logits[-1].float().topk(2).values.tolist()
    return round(float(first - second), 6)
