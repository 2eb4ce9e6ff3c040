"""The settings of ``tokenize``."""

from dataclasses import dataclass
from pathlib import Path

from dflash_cache.settings import option, require_at_most, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeConfig:
    """Turn chats, prompts with responses, or text into the tokens that ``extract --data`` reads."""

    chats: Path = option(
        help="Chats: a .jsonl, .json or .parquet file, or a folder of them.", argument=True
    )
    target: str = option(help="Target model, for its tokenizer: a folder or a hub id.")
    out: Path = option(help="Folder to write, for --data.")
    revision: str | None = option(None, help="Revision of a hub id.")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")
    limit: int | None = option(None, help="How many of the first rows to use [all].")
    chat_template: Path | None = option(
        None, help="Jinja file in the place of the target's own chat template."
    )
    thinking: bool | None = option(
        None, help="What the template is told as enable_thinking [nothing, its own default]."
    )
    last_turn_only: bool = option(False, help="Learn from the last answer of a chat alone.")
    max_seq_len: int | None = option(
        None, help="Cut longer rows, ids and mask together [tokens; no limit]."
    )
    deduplicate: bool = option(
        False, help="Keep the first of rows with the same tokens; takes some 100 bytes a row."
    )
    workers: int | None = option(
        None, help="Processes that tokenize [one for each 32 MB and core, at most 16]."
    )

    def __post_init__(self) -> None:
        require_positive(self, "limit", "max_seq_len", "workers")
        require_at_most(self, 1024, "workers")
