"""The text of a row, in the runs that its loss mask makes. Without torch, to start at once."""

from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from dflash_cache.errors import ConfigError
from dflash_cache.types import Array


def masked_text(target: str, input_ids: Array, loss_mask: Array) -> list[dict[str, Any]]:
    """Runs of tokens [{learned, text}], special tokens written out, by the target's tokenizer.

    ``ConfigError`` if ``target``, a folder or a hub id, has no tokenizer.json.
    """
    try:
        if Path(target).is_dir():
            tokenizer = Tokenizer.from_file(str(Path(target, "tokenizer.json")))
        else:
            tokenizer = Tokenizer.from_pretrained(target)
    except Exception as error:  # the library has no other class
        raise ConfigError(f"--target {target} gives no tokenizer.json: {error}") from error
    known = tokenizer.get_vocab_size()
    if len(input_ids) and input_ids.max() >= known:
        raise ConfigError(
            f"--target {target}: its tokenizer has ids 0..{known - 1}, and the row has "
            f"{input_ids.max()}; is it the target of these tokens?"
        )
    pairs = zip(loss_mask.tolist(), input_ids.tolist(), strict=True)
    runs = [(flag, [token for _, token in run]) for flag, run in groupby(pairs, lambda p: p[0])]
    return [
        {"learned": bool(flag), "text": tokenizer.decode(ids, skip_special_tokens=False)}
        for flag, ids in runs
    ]
