"""Several prompts in one pass of the target against one at a time.

    python tests/benchmarks/decoding.py [--rounds 3] [--sizes 1,4,8] [--new-tokens 32]

Every round decodes the same eight prompts of the demo target in each batch size, one after the
other, with the target alone and with an untrained drafter, whose drafts cost what those of any
other do. The report, JSON on stdout, gives median seconds and their ratios to batches of one.
"""

import argparse
import json
import statistics
import time

from dflash_cache import demo
from dflash_cache.data import TokenRows
from dflash_cache.drafter.config import DrafterConfig
from dflash_cache.drafter.generation import Limits, decode
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.drafter.proposer import DrafterProposer
from dflash_cache.target import BatchedDecoder, LayerCapture, Target, TargetDecoder

PROMPTS, LAYERS = 8, (1, 3, 5)


def untrained(target: Target) -> DFlashDrafter:
    text = target.model.config.get_text_config().to_dict()
    config = DrafterConfig.for_target(
        text, vocab_size=target.shape.vocab_size, num_layers=2, block_size=8, mask_token_id=1,
        target_layer_ids=LAYERS,
    )  # fmt: skip
    return DFlashDrafter.fresh(config, 0).eval()


def prompts() -> list[list[int]]:
    rows = TokenRows.open(demo.DATA)
    sequences = [rows.sequence(row, 256) for row in range(PROMPTS)]
    return [s.input_ids[: max(1, int(s.loss_mask.argmax()))].tolist() for s in sequences]


def seconds(capture: LayerCapture, drafter: DFlashDrafter | None, size: int, limits: Limits):
    """Seconds to decode all prompts in batches of ``size``, and the texts."""
    began, texts = time.perf_counter(), []
    for first in range(0, PROMPTS, size):
        target = TargetDecoder(capture) if size == 1 else BatchedDecoder(capture)
        own = capture.target
        proposer = DrafterProposer(drafter, own.embedding, own.head) if drafter else None
        chosen = prompts()[first : first + size]
        texts += [each.tokens for each in decode(target, chosen, proposer=proposer, limits=limits)]
    return time.perf_counter() - began, texts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", default="1,4,8")
    parser.add_argument("--new-tokens", type=int, default=32)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    target = Target.load(demo.TARGET, dtype="float32", device="cpu")
    capture = LayerCapture(target, LAYERS)
    limits = Limits(new_tokens=arguments.new_tokens, block_size=8)
    taken: dict[str, list[float]] = {}
    same = True
    for _ in range(arguments.rounds + 1):  # the first warms up
        for name, drafter in (("alone", None), ("drafter", untrained(target))):
            texts = []
            for size in sizes:
                wall_s, text = seconds(capture, drafter, size, limits)
                taken.setdefault(f"{name}, {size}", []).append(wall_s)
                texts.append(text)
            same = same and all(each == texts[0] for each in texts)
    medians = {name: statistics.median(all_s[1:]) for name, all_s in taken.items()}
    report = {
        "same_texts": same,
        "median_s": {name: round(value, 3) for name, value in medians.items()},
        "times_as_fast_as_one_by_one": {
            name: round(medians[f"{name.split(',')[0]}, {sizes[0]}"] / value, 2)
            for name, value in medians.items()
        },
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
