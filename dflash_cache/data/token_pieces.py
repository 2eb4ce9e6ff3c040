"""What single tokens stand for, by the target's tokenizer."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from dflash_cache.errors import ConfigError

UNKNOWN = "\ufffd"  # what decoders write for bytes that are no whole character
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class TokenPieces:
    """Says of each token what it adds to a text; of no tokenizer it knows ids alone."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Self:
        """By the tokenizer.json of a target's ``folder``, if it has one; ``ConfigError`` if bad."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            return cls(None)
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library has no other class
            raise ConfigError(
                f"{path} is no tokenizer that can be read: {error}. Mend it, or do without the "
                "text of tokens: evaluate --examples 0"
            ) from error

    def of(self, token_ids: Sequence[int]) -> list[dict[str, Any]]:
        """A piece for each token: {id, text}, {id, bytes} or {id}.

        ``bytes``, in hexadecimal, stands in the place of ``text`` for a token that cuts a character
        into parts. An id alone is a token that the tokenizer does not know.
        """
        return [{"id": token_id} | self._content(token_id) for token_id in token_ids]

    def _content(self, token_id: int) -> dict[str, str]:
        token = self._tokenizer.id_to_token(token_id) if self._tokenizer else None
        if token is None:
            return {}
        alone = self._decoded(token_id)
        if UNKNOWN in alone:
            return _bytes_content(token, alone)
        # Some decoders take the first blank of a text away, and leave it between two tokens.
        pair = self._decoded(token_id, token_id)
        return {"text": pair.removeprefix(alone) if pair.startswith(alone) else alone}

    def _decoded(self, *token_ids: int) -> str:
        assert self._tokenizer is not None
        text: str = self._tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text


def _bytes_content(token: str, decoded: str) -> dict[str, str]:
    """Of a token by the two ways in which vocabularies write bytes; empty if it is neither."""
    if found := _BYTE_TOKEN.fullmatch(token):
        raw = bytes.fromhex(found[1])
    elif set(token) <= set(_BYTES):
        raw = bytes(_BYTES[letter] for letter in token)
    else:
        return {}
    if raw.decode(errors="replace") != decoded:
        return {}
    whole = raw.decode(errors="ignore").encode() == raw  # the sign U+FFFD itself
    return {"text": decoded} if whole else {"bytes": raw.hex()}


def _letters_of_bytes() -> dict[str, int]:
    """The byte that each letter stands for in the vocabularies of byte-level BPE, since GPT-2."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in own]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in own} | shifted


_BYTES = _letters_of_bytes()
