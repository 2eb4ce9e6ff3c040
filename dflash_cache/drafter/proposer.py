"""The drafter as a proposer.

Axes: T tokens, K context layers, H hidden size, N sequences, B block size, V vocabulary.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from .attention import KeyValue, Tile, TiledAttention
from .choice import NO_DRAFTS, Drafts
from .generation import Decoding
from .model import DFlashDrafter


class DrafterProposer:
    """The drafter's proposals; keeps the keys and values of each sequence's context.

    Contexts are packed end to end, so that one pass proposes for all sequences whose blocks have
    the same size. All have it but those that near their end: to draft as it would alone, a
    sequence must not see further slots.
    """

    def __init__(self, drafter: DFlashDrafter, embedding: torch.Tensor, head: torch.Tensor) -> None:
        self._drafter = drafter
        self._embedding = embedding
        self._head = head
        self._contexts: list[list[KeyValue]] = []  # of each sequence, of each layer

    def observe(self, features: Sequence[torch.Tensor]) -> None:
        lengths = [len(own) for own in features]
        past = [len(context[0][0]) for context in self._contexts] or [0] * len(features)
        device = self._embedding.device
        positions = torch.cat(
            [
                torch.arange(start, start + count, device=device)
                for start, count in zip(past, lengths, strict=True)
            ]
        )
        packed = torch.cat(list(features)).to(self._embedding.dtype)
        new = [
            (torch.split(key, lengths), torch.split(value, lengths))
            for key, value in self._drafter.context(packed, positions)
        ]
        fresh = [[(key[index], value[index]) for key, value in new] for index in range(len(past))]
        if self._contexts:
            fresh = [_joined(pair) for pair in zip(self._contexts, fresh, strict=True)]
        self._contexts = fresh

    def propose(self, decodings: Sequence[Decoding], most: Sequence[int]) -> list[Drafts]:
        sizes = [min(self._drafter.config.block_size, count + 1) for count in most]
        drafts = [NO_DRAFTS] * len(sizes)
        for size in set(sizes):
            indices = [index for index, own in enumerate(sizes) if own == size]
            logits = self._logits([(decodings[i], self._contexts[i]) for i in indices], size)
            for index, own in zip(indices, logits, strict=True):
                drafts[index] = decodings[index].choice.draft(own)
        return drafts

    def keep(self, indices: Sequence[int]) -> None:
        self._contexts = [self._contexts[index] for index in indices]

    def _logits(
        self, members: Sequence[tuple[Decoding, list[KeyValue]]], size: int
    ) -> torch.Tensor:
        """[N, size - 1, V] of the slots after the anchor."""
        device = self._embedding.device
        tokens = torch.full((len(members), size), self._drafter.config.mask_token_id)
        tokens[:, 0] = torch.tensor([decoding.committed[-1] for decoding, _ in members])
        starts = [len(decoding.committed) - 1 for decoding, _ in members]
        # An anchor has no states yet: its place is right after the last token of its context.
        ends = list(accumulate(starts))
        positions = torch.tensor(starts)[:, None] + torch.arange(size)
        tiles = [
            Tile(first_token=first, last_token=last, first_block=block, last_block=block + 1)
            for block, (first, last) in enumerate(pairwise([0, *ends]))
        ]
        attention = TiledAttention.of_tiles(
            tiles, torch.tensor(ends), size, self._drafter.visibilities
        )
        hidden = self._drafter(
            self._embedding[tokens.flatten().to(device)],
            positions.flatten().to(device),
            _joined([context for _, context in members]),
            attention.to(device),
        )
        slots = hidden.view(len(members), size, -1)[:, 1:]
        return torch.nn.functional.linear(slots, self._head)


def _joined(contexts: Sequence[list[KeyValue]]) -> list[KeyValue]:
    """Contexts end to end, layer by layer."""
    return [
        (torch.cat([key for key, _ in layer]), torch.cat([value for _, value in layer]))
        for layer in zip(*contexts, strict=True)
    ]
