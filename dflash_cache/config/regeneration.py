"""The settings of ``regenerate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from dflash_cache.errors import ConfigError
from dflash_cache.settings import option, require_at_most, require_not_negative, require_positive


@dataclass(frozen=True, kw_only=True, slots=True)
class RegenerateConfig:
    """Let the target itself answer the prompts of chats, for a drafter to learn from."""

    data: Path = option(
        help="Chats or prompts: a .jsonl, .json or .parquet file, or a folder of them.",
        argument=True,
    )
    out: Path = option(help="File of chats to write, .jsonl, for tokenize.")
    server: str | None = option(
        None, help="OpenAI-compatible server of the target: http://localhost:8000/v1."
    )
    model: str | None = option(None, help="The target's name there [the only one it serves].")
    target: str | None = option(
        None, help="Without a server: target model to run here, a folder or a hub id."
    )
    revision: str | None = option(None, help="Revision of a hub id.")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")
    device: str = option("", help="Device of --target [the last CUDA device, or cpu].")
    dtype: Literal["float32", "bfloat16"] | None = option(
        None, help="What --target computes in [bfloat16 on CUDA, else float32]."
    )
    limit: int | None = option(None, help="How many of the first rows to use [all].")
    last_turn_only: bool = option(
        False, help="Answer the last turn of a chat alone; earlier answers stay as they are."
    )
    temperature: float = option(0.0, help="Sample at this temperature; 0 decodes greedily.")
    top_p: float = option(1.0, help="Sample from the likeliest tokens of this total probability.")
    max_tokens: int = option(2048, help="Most tokens of an answer [tokens].")
    seed: int = option(0, help="Seed of sampling; that of a row is this plus its number.")
    thinking: bool | None = option(
        None, help="What the template is told as enable_thinking [nothing, its own default]."
    )
    concurrency: int = option(64, help="Requests under way at once.")
    timeout: float = option(600.0, help="Time that the server has for an answer [s].")
    retries: int = option(
        10, help="How often a request that failed is sent again; ten take about four minutes."
    )
    on_refused: Literal["fail", "drop"] = option(
        "fail", help="What becomes of a row that is refused, such as for its length."
    )

    def __post_init__(self) -> None:
        require_positive(self, "limit", "top_p", "max_tokens", "concurrency", "timeout")
        require_at_most(self, 10_000, "concurrency")  # a thread and a connection each
        require_not_negative(self, "temperature", "seed", "retries")
        if self.top_p > 1:
            raise ConfigError(f"--top-p {self.top_p}: must be at most 1")
        if (self.server is None) == (self.target is None):
            raise ConfigError(
                "give --server with the address of a server of the target, or --target with a "
                "model to run here, and not both"
            )
        if self.server is not None and not _is_address(self.server):
            raise ConfigError(
                f"--server {self.server}: expected an address such as http://localhost:8000/v1"
            )
        if self.out.suffix != ".jsonl":
            raise ConfigError(f"--out {self.out}: expected a file named .jsonl")
        if self.out.parent.resolve() == self.data.resolve():
            raise ConfigError(
                f"--out {self.out} lies among the files of --data, and would be read as one of "
                "them; name another"
            )


def _is_address(server: str) -> bool:
    try:
        parts = urlsplit(server)
        _ = parts.port, (parts.hostname or "").encode("idna")
    except ValueError:  # such as an open bracket, a port above 65535, two dots in the name
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
