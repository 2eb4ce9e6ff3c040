"""One drafter in training: forward, loss, backward, step."""

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dflash_cache.config import TrainConfig
from dflash_cache.drafter.loss import BlockAccuracy, SlotLoss, slot_loss, slot_weights
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.errors import TrainingError
from dflash_cache.types import DraftBatch

from .features import features_of
from .prepared import PreparedBatch, prepared
from .ranks import ALONE, Ranks
from .schedule import learning_rate_factor


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one optimizer step saw, over all ranks."""

    loss: float
    grad_norm: float
    lr: float
    block_acceptance_length: float
    slot_accuracy: list[float]
    num_tokens: int
    num_blocks: int


@dataclass(slots=True)
class _Sums:
    """Over the micro-batches of a step."""

    accuracy: BlockAccuracy
    loss: float = 0.0
    weight: float = 0.0
    tokens: int = 0
    rows: tuple[int, ...] = ()


class DrafterStep:
    """The drafter, the target's frozen embedding and head, and the optimizer.

    Master weights and optimizer state are float32; on CUDA the forward runs in bfloat16, unless
    ``config.compute_dtype`` says otherwise.
    """

    def __init__(
        self,
        drafter: DFlashDrafter,
        embedding: torch.Tensor,
        head: torch.Tensor,
        config: TrainConfig,
        num_steps: int,
        ranks: Ranks = ALONE,
    ) -> None:
        """``embedding`` and ``head``: [vocabulary, H]; ``num_steps`` shapes the schedule.

        A batch's K axis holds the drafter's features; with ``config.loss`` "kl", then the
        target's input to its head.
        """
        self.ranks = ranks
        self.device = torch.device(config.device)
        self.drafter = drafter.to(self.device)
        self.drafter.checkpoint_activations = config.checkpoint_activations
        self._distils = config.loss == "kl"
        named = config.compute_dtype or ("bfloat16" if self.device.type == "cuda" else "float32")
        compute: torch.dtype = getattr(torch, named)
        self._embedding = embedding.to(self.device, compute)
        tied = head is embedding
        self._head = self._embedding if tied else head.to(self.device, compute)
        self._weights = slot_weights(drafter.config.block_size, config.gamma).to(self.device)
        self._clip_norm = config.clip_norm
        self.optimizer = torch.optim.AdamW(
            drafter.parameters(), lr=config.lr, weight_decay=config.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate_factor(step, num_steps, config)
        )

    def step(self, batches: Iterable[DraftBatch]) -> StepResult | None:
        """One optimizer step over micro-batches; None, and no step, if none has a supervised slot.

        The loss is one weighted mean over all slots of all micro-batches of all ranks: gradients
        of the sums are added up and divided by the total weight at the end. ``TrainingError`` if
        loss or gradients are not finite; the weights are then as before.
        """
        sums = _Sums(BlockAccuracy.zero(self.drafter.config.block_size))
        for batch in batches:
            sums.rows += batch.row_ids
            sums.tokens += batch.num_tokens
            if len(batch.anchors):
                loss, supervised = self.forward(batch)
                loss.weighted_sum.backward()  # type: ignore[no-untyped-call]
                sums.loss += float(loss.weighted_sum.detach())
                sums.weight += float(loss.weight_sum)
                sums.accuracy.add(loss.correct, supervised)
        self._add_up(sums)
        if sums.weight == 0:
            return None
        return self._finish(sums)

    def _add_up(self, sums: "_Sums") -> None:
        """Let ``sums`` be those of all ranks; the rows stay this rank's."""
        totals = torch.tensor([sums.loss, sums.weight, sums.tokens], dtype=torch.float64)
        self.ranks.sum(totals)
        sums.loss, sums.weight, sums.tokens = float(totals[0]), float(totals[1]), int(totals[2])
        self.ranks.sum_accuracy(sums.accuracy)

    def _finish(self, sums: "_Sums") -> StepResult:
        self.ranks.sum_gradients(self.drafter.parameters())
        for parameter in self.drafter.parameters():
            if parameter.grad is not None:
                parameter.grad /= sums.weight
        norm = float(nn.utils.clip_grad_norm_(self.drafter.parameters(), self._clip_norm))
        if not (math.isfinite(sums.loss) and math.isfinite(norm)):
            rows = [row for each in self.ranks.all(sums.rows) for row in each]
            raise TrainingError(
                f"loss {sums.loss / sums.weight} and gradient norm {norm} on rows "
                f"{rows}; lower --lr, or look at these rows"
            )
        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self._schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        return StepResult(
            loss=sums.loss / sums.weight,
            grad_norm=norm,
            lr=lr,
            block_acceptance_length=sums.accuracy.block_acceptance_length,
            slot_accuracy=sums.accuracy.slot_accuracy,
            num_tokens=sums.tokens,
            num_blocks=sums.accuracy.blocks,
        )

    def prepare(self, batch: DraftBatch) -> PreparedBatch:
        """``batch`` with its blocks and their attention planned, on the CPU.

        It may be called from any thread; ``forward`` does it for a batch that is not prepared.
        """
        drafter = self.drafter
        return prepared(batch, drafter.config, drafter.visibilities, self.device)

    def forward(self, batch: DraftBatch) -> tuple[SlotLoss, torch.Tensor]:
        """The loss of ``batch`` and which slots count, bool [S, B]."""
        here = self.prepare(batch).to(self.device)
        blocks = here.blocks
        with self._compute_context():
            states = features_of(here, self.device, self._embedding.dtype)
            features = states[:, : len(self.drafter.config.target_layer_ids)]
            hidden = self.drafter(
                self._embedding[here.block_tokens.flatten()],
                blocks.positions.flatten(),
                self.drafter.context(features, here.positions),
                here.attention,
            )
            teacher = self._teacher(states[:, -1], here.anchors) if self._distils else None
            slots = blocks.labels, blocks.supervised, self._weights
            loss = slot_loss(hidden, self._head, *slots, teacher)
        return loss, blocks.supervised

    def _teacher(self, last_TH: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """The target's state [S * B, H] from which it predicts each slot's token: one before it."""
        slots = torch.arange(self.drafter.config.block_size, device=anchors.device)
        token = anchors[:, None] + slots - 1
        return last_TH[token.clamp(0, len(last_TH) - 1).flatten()]  # the rest is not supervised

    @torch.no_grad()
    def add_accuracy(self, batch: DraftBatch, accuracy: BlockAccuracy) -> None:
        """Count ``batch`` in the teacher-forced ``accuracy``."""
        if len(batch.anchors):
            loss, supervised = self.forward(batch)
            accuracy.add(loss.correct, supervised)

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Weights, and the states of optimizer and schedule."""
        optimizer = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
        }
        return self.drafter.state_dict(), optimizer

    def load_state(self, weights: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        self.drafter.load_state_dict(weights)
        self.optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])

    def _compute_context(self) -> AbstractContextManager[object]:
        if self._embedding.dtype == torch.bfloat16:
            return torch.autocast(self.device.type, torch.bfloat16)
        return nullcontext()
