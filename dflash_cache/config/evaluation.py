"""What a drafter is worth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dflash_cache.errors import ConfigError
from dflash_cache.settings import option, require_not_negative, require_positive

from .extraction import ON_BAD_ROW, OnBadRow


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateConfig:
    """Decode held-out prompts with and without a drafter."""

    target: str = option(help="Target model: a folder or a hub id.")
    drafter: tuple[Path, ...] = option(
        help="Drafter folder: RUN/export or another one in the same layout; several are compared."
    )
    data: Path = option(
        help="Dataset of the prompts; of training data only held-out rows are used."
    )
    split: str | None = option(None, help="Split of a dataset dict.")
    revision: str | None = option(None, help="Revision of a hub id.")
    trust_remote_code: bool = option(False, help="Allow the target's own Python code to run.")
    device: str = option("", help="Device [the last CUDA device, or cpu].")
    dtype: Literal["float32", "bfloat16"] | None = option(
        None, help="What target and drafter compute in [bfloat16 on CUDA, else float32]."
    )
    on_bad_row: OnBadRow = option("fail", help=ON_BAD_ROW)
    prompts: int = option(64, help="Prompts to decode [rows].")
    new_tokens: int = option(64, help="Most tokens to decode for each prompt [tokens].")
    temperature: float = option(0.0, help="Sample at this temperature; 0 decodes greedily.")
    batch_size: int = option(1, help="Prompts decoded in one pass of the target.")
    untrained: bool = option(False, help="Decode with an untrained drafter of the same shape too.")
    examples: int = option(
        3, help="Prompts whose first blocks the report shows, token by token; 0 for none."
    )
    seed: int = option(0, help="Seed of the untrained drafter's weights and of sampling.")
    out: Path | None = option(
        None, help="File for report and settings [RUN/evaluation.json for RUN/export]."
    )

    def __post_init__(self) -> None:
        require_positive(self, "prompts", "new_tokens", "batch_size")
        require_not_negative(self, "seed", "temperature", "examples")
        if not self.drafter or len({each.resolve() for each in self.drafter}) < len(self.drafter):
            named = ", ".join(map(str, self.drafter)) or "none"
            raise ConfigError(f"--drafter {named}: name at least one folder, each once")
