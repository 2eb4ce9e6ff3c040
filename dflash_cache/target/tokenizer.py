"""A target's tokenizer and chat template, as transformers and the serving engines load them."""

from pathlib import Path

from dflash_cache.errors import ConfigError
from dflash_cache.types import TokenizerParts


def load_tokenizer(
    target: str, revision: str | None, *, trust_remote_code: bool = False
) -> TokenizerParts:
    """The parts of the tokenizer of ``target``, a folder or a hub id; no weights are fetched.

    ``ConfigError`` if there is none, or none that the library tokenizers can run.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            target, revision=revision, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, ImportError) as error:
        fault = "has no tokenizer that transformers loads"
        if not Path(target).is_dir():
            fault = "is neither a folder nor a model of the hub with a tokenizer"
        raise ConfigError(f"--target {target} {fault}: {error}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"--target {target}: {type(tokenizer).__name__} is no fast tokenizer, and positions in "
            "the text are needed; take a copy of the target with a tokenizer.json"
        )
    backend = tokenizer.backend_tokenizer
    # Where files are missing transformers makes a tokenizer that knows no words.
    if set(backend.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ConfigError(
            f"--target {target} has no tokenizer's files; copy tokenizer.json and "
            "tokenizer_config.json of the model there"
        )
    return TokenizerParts(
        tokenizer_json=backend.to_str(),
        chat_template=tokenizer.get_chat_template() if tokenizer.chat_template else None,
        special_tokens={
            name: str(token)
            for name, token in tokenizer.special_tokens_map.items()
            if isinstance(token, str)
        },
    )
