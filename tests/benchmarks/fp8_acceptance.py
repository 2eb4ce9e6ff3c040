"""Drafters trained from 8-bit states against drafters trained from the bfloat16 states themselves.

    python tests/benchmarks/fp8_acceptance.py [--steps 400] [--seeds 0,1,2] [--folder DIR]

The bundled target computes the demo's states in bfloat16, and two caches keep them: as they are
(crc32c) and in 8 bits (fp8). With each seed a drafter is trained from both, at the demo's settings,
and decodes the same held-out prompts. The report, JSON on stdout, has each acceptance length, the
means and their ratio, and the relative error of the 8-bit states by layer. With --folder an
interrupted run goes on where it was.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dflash_cache.config import EvaluateConfig, ExtractConfig, InspectConfig, TrainConfig
from dflash_cache.runs.demo import demo_settings
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from dflash_cache.runs.inspect import inspect
from dflash_cache.runs.train import train
from dflash_cache.settings import build, options_of

FORMS = {"bfloat16": "crc32c", "fp8": "fp8"}  # by codec; the target computes the same in both


def configured(kind: type, folder: Path, form: str, **changes: Any) -> Any:
    """The demo's settings that ``kind`` has, with ``changes``."""
    known = {item.name for item, _ in options_of(kind)}
    settings = demo_settings() | {"cache": str(folder / form / "cache")} | changes
    return build(kind, {name: value for name, value in settings.items() if name in known})


def say(began: float, text: str) -> None:
    sys.stderr.write(f"{time.perf_counter() - began:7.1f} s  {text}\n")


def acceptance_length(folder: Path, form: str, seed: int, arguments: argparse.Namespace) -> float:
    run = folder / form / f"seed-{seed}"
    train(configured(TrainConfig, folder, form, out=run, seed=seed, steps=arguments.steps))
    drafter = run / "export"
    changes = {"drafter": drafter, "prompts": arguments.prompts, "out": None}
    found = evaluate(configured(EvaluateConfig, folder, form, **changes))
    return float(found["acceptance_length"])


def compare(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    began = time.perf_counter()
    sizes = {}
    for form, codec in FORMS.items():
        changes = {"codec": codec, "dtype": "bfloat16", "limit": arguments.limit}
        made = extract(configured(ExtractConfig, folder, form, **changes))
        sizes[form] = round(made["bytes_stored"] / made["bytes_raw"], 4)
        say(began, f"extracted {form}: {sizes[form]} of raw")
    shown = inspect(InspectConfig(cache=str(folder / "fp8/cache"), quality=True, device="cpu"))
    lengths: dict[str, list[float]] = {form: [] for form in FORMS}
    for seed in arguments.seeds:
        for form, found in lengths.items():
            found.append(acceptance_length(folder, form, seed, arguments))
            say(began, f"seed {seed}, {form}: acceptance length {found[-1]}")
    means = {form: round(statistics.mean(found), 4) for form, found in lengths.items()}
    return {
        "steps": arguments.steps,
        "seeds": arguments.seeds,
        "acceptance_length": lengths,
        "mean_acceptance_length": means,
        "fp8_of_bfloat16": round(means["fp8"] / means["bfloat16"], 4),
        "size_of_raw": sizes,
        "quality": shown["quality"],
        "wall_s": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=demo_settings()["steps"])
    parser.add_argument(
        "--seeds", type=lambda text: list(map(int, text.split(","))), default="0,1,2"
    )
    parser.add_argument("--prompts", type=int, default=64, help="held-out prompts to decode")
    parser.add_argument("--limit", type=int, default=None, help="rows of the demo [all]")
    parser.add_argument("--folder", type=Path, default=None, help="keeps caches and runs [none]")
    arguments = parser.parse_args()
    if arguments.folder:
        report = compare(arguments.folder, arguments)
    else:
        with tempfile.TemporaryDirectory() as folder:
            report = compare(Path(folder), arguments)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
