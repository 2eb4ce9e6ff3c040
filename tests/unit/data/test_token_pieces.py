"""What single tokens stand for, with the ways in which vocabularies write bytes."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from dflash_cache import demo
from dflash_cache.data import TokenPieces
from dflash_cache.errors import ConfigError
from tests.support.tiny_tokenizers import byte_tokenizer


def sentencepiece() -> Tokenizer:
    """With a sign for blanks, bytes as a last resort, and a decoder that drops the first blank."""
    vocab = {"▁list": 0, "s": 1, "<0xC3>": 2, "<0xA9>": 3, "<0x0A>": 4, "▁": 5}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    return tokenizer


def test_tokens_of_the_bundled_target_join_to_the_text_and_keep_their_blanks():
    tokenizer = Tokenizer.from_file(str(demo.TARGET / "tokenizer.json"))
    text = "def add(a, b):\n    return a + b<|im_end|>"
    ids = tokenizer.encode(text).ids
    pieces = TokenPieces.load(demo.TARGET).of(ids)
    assert [piece["id"] for piece in pieces] == ids
    assert "".join(piece["text"] for piece in pieces) == text
    assert pieces[-1]["text"] == "<|im_end|>"


@pytest.mark.parametrize("letter", ["é", "佛", "\N{GRINNING FACE}"])
def test_a_part_of_a_character_is_shown_as_its_bytes(letter):
    tokenizer = byte_tokenizer()
    pieces = TokenPieces(tokenizer).of(tokenizer.encode(f"a{letter}").ids)
    assert pieces[0]["text"] == "a"
    assert all("text" not in piece for piece in pieces[1:])
    parts = [bytes.fromhex(piece["bytes"]) for piece in pieces[1:]]
    assert [len(part) for part in parts] == [1] * len(letter.encode())
    assert b"".join(parts).decode() == letter


def test_blanks_and_bytes_of_a_sentencepiece_vocabulary_are_told_too():
    assert TokenPieces(sentencepiece()).of([0, 1, 2, 3, 4, 5, 6]) == [
        {"id": 0, "text": " list"},
        {"id": 1, "text": "s"},
        {"id": 2, "bytes": "c3"},
        {"id": 3, "bytes": "a9"},
        {"id": 4, "text": "\n"},
        {"id": 5, "text": " "},
        {"id": 6, "text": "<s>"},
    ]


def test_the_sign_for_what_is_no_character_is_text_where_it_is_a_token():
    vocab = {"\u00ef\u00bf\u00bd": 0, "\u00ef\u00bf": 1}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    pieces = TokenPieces(tokenizer).of([0, 1])
    assert pieces == [{"id": 0, "text": "\ufffd"}, {"id": 1, "bytes": "efbf"}]


def test_of_an_id_without_a_word_or_a_target_without_a_tokenizer_the_id_is_all(tmp_path):
    assert TokenPieces.load(demo.TARGET).of([1 << 20]) == [{"id": 1 << 20}]
    assert TokenPieces.load(tmp_path).of([7]) == [{"id": 7}]


def test_a_tokenizer_that_cannot_be_read_is_named_with_the_way_out(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json is no tokenizer .* --examples 0"):
        TokenPieces.load(tmp_path)
