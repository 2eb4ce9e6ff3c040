"""The target that ``regenerate`` asks: on a server, or loaded here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from dflash_cache.config import RegenerateConfig
from dflash_cache.errors import ConfigError
from dflash_cache.serving import Client, ServedTarget
from dflash_cache.types import Sampling

from .answering import Answering

API_KEY = "OPENAI_API_KEY"


@contextmanager
def asked_target(config: RegenerateConfig) -> Iterator[tuple[Answering, str | None]]:
    """The target, and its name on the server. ``ConfigError`` if it cannot answer chats."""
    sampling = Sampling(
        temperature=config.temperature,
        top_p=config.top_p,
        max_tokens=config.max_tokens,
        thinking=config.thinking,
    )
    if config.server is None:
        yield _loaded(config, sampling), None
        return
    with Client(
        config.server,
        api_key=_api_key(),
        timeout_s=config.timeout,
        retries=config.retries,
    ) as client:
        served = ServedTarget(client, config.model, sampling)
        yield served, served.name


def _api_key() -> str:
    key = os.environ.get(API_KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{API_KEY} holds characters that no key has")
    return key


def _loaded(config: RegenerateConfig, sampling: Sampling) -> Answering:
    from dflash_cache.data.templates import ChatTemplate
    from dflash_cache.target import Target, resolve_target
    from dflash_cache.target.answering import AnsweringTarget
    from dflash_cache.target.tokenizer import load_tokenizer

    from .devices import default_dtype, single_device

    assert config.target is not None
    trusted = config.trust_remote_code
    parts = load_tokenizer(config.target, config.revision, trust_remote_code=trusted)
    if parts.chat_template is None:
        raise ConfigError(
            f"--target {config.target} has no chat template, and chats are to be answered; copy "
            "one there as chat_template.jinja"
        )
    thinking = {} if sampling.thinking is None else {"enable_thinking": sampling.thinking}
    variables = {**parts.special_tokens, **thinking}
    template = ChatTemplate(parts.chat_template, variables, datetime.now())
    device = single_device(config.device)
    target = Target.load(
        resolve_target(config.target, config.revision),
        dtype=default_dtype(device, config.dtype),
        device=device,
        trust_remote_code=trusted,
    )
    return AnsweringTarget(
        target,
        lambda messages, tools: template.render(
            [dict(each) for each in messages], tools, prompt=True
        )[0],
        sampling,
        trust_remote_code=trusted,
    )
