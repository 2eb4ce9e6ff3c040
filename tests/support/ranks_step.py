"""Run by torchrun: three optimizer steps on two ranks, whose weights go to the named file.

Each rank takes every second of the four sequences.
"""

import sys
from pathlib import Path

from safetensors.torch import save_file

from dflash_cache.train import joined_ranks
from tests.support.drafters import drafter_config, drafter_step, uneven_sequences


def main(path: Path) -> None:
    with joined_ranks("cpu") as ranks:
        step = drafter_step(path.parent, drafter_config(), ranks=ranks)
        for _ in range(3):
            step.step(uneven_sequences()[ranks.rank :: ranks.size])
        weights = step.drafter.state_dict()
        save_file(weights, path.with_suffix(f".{ranks.rank}"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
