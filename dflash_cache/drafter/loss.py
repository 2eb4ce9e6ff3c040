"""The drafter's loss and the accuracy that comes with it."""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# Logits of one chunk, in elements: 256 MiB of float32. A large vocabulary's never exist whole.
CHUNK_ELEMENTS = 1 << 26
# gamma of the slot weights by block size (DFlash, arXiv 2602.06036, section 4).
GAMMA = {16: 7.0, 10: 5.0, 8: 4.0}


def slot_weights(block_size: int, gamma: float | None = None) -> torch.Tensor:
    """w_k = exp(-(k - 1) / gamma) for slots 1.., 0 for slot 0: float32 [block_size].

    Without ``gamma`` it is the published value for the block size, else about half of it.
    """
    gamma = gamma if gamma is not None else GAMMA.get(block_size, max(1.0, block_size / 2))
    weights = torch.exp(-(torch.arange(block_size, dtype=torch.float32) - 1) / gamma)
    weights[0] = 0.0
    return weights


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotLoss:
    """Sums over the supervised slots of a batch; a mean is taken once an optimizer step."""

    weighted_sum: torch.Tensor  # scalar: sum(w * loss of the slot), carries the gradient
    weight_sum: torch.Tensor  # scalar: sum(w)
    correct: torch.Tensor  # [S, B] bool, no gradient


def slot_loss(
    hidden: torch.Tensor,
    head: torch.Tensor,
    labels: torch.Tensor,
    supervised: torch.Tensor,
    weights: torch.Tensor,
    teacher: torch.Tensor | None = None,
) -> SlotLoss:
    """Weighted cross-entropy through the target's frozen ``head`` [vocabulary, H].

    With ``teacher``, the target's own input to its head for each slot, it is instead the
    divergence KL(target || drafter) of the two distributions.

    Args:
        hidden: [S * B, H]; labels: [S, B] int64; supervised: [S, B] bool; weights: [B];
            teacher: [S * B, H].
    """
    chosen = supervised.flatten().nonzero().squeeze(1)
    hidden, targets = hidden[chosen], labels.flatten()[chosen]
    weight = weights.expand_as(supervised).flatten()[chosen]
    rows = max(1, CHUNK_ELEMENTS // head.shape[0])
    num_chunks = max(1, math.ceil(len(chosen) / rows))
    total = hidden.new_zeros((), dtype=torch.float32)
    hits = []
    teachers = (None,) * num_chunks if teacher is None else teacher[chosen].chunk(num_chunks)
    parts = (each.chunk(num_chunks) for each in (hidden, targets, weight))
    for part, target, w, guide in zip(*parts, teachers, strict=True):
        if num_chunks == 1:
            loss, hit = _chunk_loss(part, head, target, w, guide)
        else:  # recompute a chunk's logits in the backward pass instead of keeping them
            loss, hit = checkpoint(_chunk_loss, part, head, target, w, guide, use_reentrant=False)
        total = total + loss
        hits.append(hit)
    correct = torch.zeros_like(supervised).flatten().index_put((chosen,), torch.cat(hits))
    return SlotLoss(
        weighted_sum=total, weight_sum=weight.sum(), correct=correct.view_as(supervised)
    )


def _chunk_loss(
    hidden: torch.Tensor,
    head: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor,
    teacher: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = functional.linear(hidden, head).float()
    if teacher is None:
        losses = functional.cross_entropy(logits, target, reduction="none")
    else:
        wanted = functional.linear(teacher, head).float().log_softmax(-1)
        found = logits.log_softmax(-1)
        losses = functional.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
    return (losses * weight).sum(), logits.detach().argmax(-1) == target


@dataclass(kw_only=True, slots=True)
class BlockAccuracy:
    """Teacher-forced accuracy over blocks, summed over batches."""

    correct: torch.Tensor  # [B] float64
    supervised: torch.Tensor  # [B] float64
    accepted: float = 0.0
    blocks: int = 0

    @classmethod
    def zero(cls, block_size: int) -> "BlockAccuracy":
        zeros = torch.zeros(2, block_size, dtype=torch.float64)
        return cls(correct=zeros[0], supervised=zeros[1])

    def add(self, correct: torch.Tensor, supervised: torch.Tensor) -> None:
        """Count ``correct`` and ``supervised``, both bool [S, B]."""
        self.correct += correct.sum(0).double().cpu()
        self.supervised += supervised.sum(0).double().cpu()
        self.accepted += float(correct[:, 1:].cumprod(1).sum())
        self.blocks += len(correct)

    @property
    def block_acceptance_length(self) -> float:
        """Mean over blocks of (leading correct slots) + 1, the bonus token; 0.0 without blocks."""
        return self.accepted / self.blocks + 1 if self.blocks else 0.0

    @property
    def slot_accuracy(self) -> list[float]:
        """Share of correct tokens in slots 1..B-1; 0.0 for a slot that was never supervised."""
        shares = self.correct[1:] / self.supervised[1:].clamp_min(1)
        return [round(share, 6) for share in shares.tolist()]
