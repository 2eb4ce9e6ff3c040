"""A target in this process that answers chats, by transformers' own generation."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import AutoTokenizer, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from dflash_cache.errors import RefusedError
from dflash_cache.pipeline import Cancelled
from dflash_cache.types import Answer, Sampling

from .model import Target

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], list[Any] | None], str]  # (messages, tools) -> prompt


class AnsweringTarget:
    """One thread may ask; ``abort`` is for others, and ends an answer at its next token."""

    def __init__(
        self, target: Target, render: Render, sampling: Sampling, *, trust_remote_code: bool
    ) -> None:
        """``render`` writes the prompt, special tokens and all."""
        self._target = target
        self._render = render
        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            target.folder, trust_remote_code=trust_remote_code
        )
        self._generation = _generation_config(target, sampling)
        self._border = _Border()

    def answer(self, messages: Sequence[Message], tools: list[Any] | None, seed: int) -> Answer:
        """What the target says next, after ``messages``; ``tools`` are on offer to it.

        ``RefusedError`` if the prompt leaves no room in the target's positions; ``Cancelled``
        after ``abort``.
        """
        prompt = self._tokenizer(
            self._render(messages, tools), add_special_tokens=False, return_tensors="pt"
        )["input_ids"].to(self._target.device)
        room = self._target.shape.max_position_embeddings - prompt.shape[1]
        if room < 1:
            raise RefusedError(
                f"the prompt has {prompt.shape[1]:,} tokens, and the target "
                f"{self._target.shape.max_position_embeddings:,} positions"
            )
        torch.manual_seed(seed)
        written = self._written(prompt, room)
        return Answer(
            message={
                "role": "assistant",
                "content": self._tokenizer.decode(written, skip_special_tokens=True),
            },
            num_tokens=len(written),
            truncated=written[-1] not in _end_ids(self._generation),
        )

    def abort(self) -> None:
        """End an answer that is being written, and all later ones."""
        self._border.aborted = True

    def _written(self, prompt: torch.Tensor, room: int) -> list[int]:
        """The new tokens, the one that ended them included."""
        settings = copy.copy(self._generation)
        settings.max_new_tokens = min(room, self._generation.max_new_tokens)
        output = self._target.model.generate(  # type: ignore[operator]
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=settings,
            stopping_criteria=StoppingCriteriaList([self._border]),
        )
        return list(output[0, prompt.shape[1] :].tolist())


class _Border(StoppingCriteria):
    """What generation calls behind each token."""

    aborted = False

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        if self.aborted:
            raise Cancelled("an answer of the target")
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _generation_config(target: Target, sampling: Sampling) -> GenerationConfig:
    """The target's own, with ``sampling`` in it; all else stays as it is."""
    settings: GenerationConfig = copy.deepcopy(target.model.generation_config)  # type: ignore[assignment]
    settings.max_length = None
    settings.max_new_tokens = sampling.max_tokens
    settings.do_sample = sampling.temperature > 0
    settings.temperature = sampling.temperature if settings.do_sample else None
    settings.top_p = sampling.top_p if settings.do_sample else None
    if not settings.do_sample:
        settings.top_k = None
    elif settings.top_k is None:
        settings.top_k = 0  # else transformers would take the likeliest 50
    ends = _end_ids(settings)
    if settings.pad_token_id is None and ends:
        settings.pad_token_id = ends[0]
    return settings


def _end_ids(settings: GenerationConfig) -> Sequence[int]:
    ends = settings.eos_token_id
    return [ends] if isinstance(ends, int) else list(ends or ())
