"""``extract`` against the bare forward pass, and its forward against one of all layers and logits.

    python tests/benchmarks/extract.py [--rounds 3] [--rows 400] [--threads 1] [--folder DIR]
        [--only simulated demo forward]

Every round runs all ways once, in turn, on the demo's rows. The JSON on stdout has medians.
``simulated``: tokens a second of an extraction over those of the same batches alone, on a device
that only sleeps (``--token-us`` for each padded token), so that the CPU is free for the rest.
``demo``: the same with the demo target on this CPU; the bare forward pass has its padded ids ready
and collects no states. ``--threads`` are those of the forward pass. ``forward``: seconds of a whole
pass with ``output_hidden_states=True`` over those with the early stop and without the head; and
what the largest batch adds to memory at its peak in either way, each in a process of its
own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from dflash_cache import demo
from dflash_cache.config import ExtractConfig
from dflash_cache.data import plan_batches
from dflash_cache.runs.extract import extracting
from dflash_cache.runs.extraction import load_captures
from dflash_cache.runs.preparation import Preparation, prepare
from dflash_cache.runs.progress import ignore
from dflash_cache.target import LayerCapture
from tests.support.simulated_device import SimulatedCapture

Batch = list[torch.Tensor]


def settings(cache: Path, rows: int) -> ExtractConfig:
    return ExtractConfig(
        data=demo.DATA, target=str(demo.TARGET), cache=str(cache), devices=("cpu",), limit=rows
    )


def batches_of(preparation: Preparation) -> list[Batch]:
    """The ids of every batch of the plan, in its order."""
    batches = []
    for plan in preparation.plan:
        pairs = zip(plan.row_ids.tolist(), plan.lengths.tolist(), strict=True)
        ids = [
            torch.from_numpy(preparation.rows.sequence(*pair).input_ids).long() for pair in pairs
        ]
        slices = plan_batches(plan.lengths, preparation.config.batch_tokens)
        batches += [ids[batch] for batch in slices]
    return batches


def padded(batch: Batch) -> torch.Tensor:
    """Rows [N, L], as ``LayerCapture`` pads them."""
    longest = max(map(len, batch))
    return torch.stack([torch.cat([ids, ids[-1:].expand(longest - len(ids))]) for ids in batch])


@torch.inference_mode()
def stopped_pass(capture: LayerCapture, ids: torch.Tensor) -> None:
    with capture.recording(stop=True):
        capture.target.decoder(input_ids=ids, use_cache=False)


@torch.inference_mode()
def whole_pass(capture: LayerCapture, ids: torch.Tensor) -> None:
    capture.target.model(input_ids=ids, use_cache=False, output_hidden_states=True)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def extraction_s(config: ExtractConfig, capture: LayerCapture) -> tuple[float, dict[str, float]]:
    """Seconds from the loaded target to the last commit of a new cache, and the stages' shares."""
    with tempfile.TemporaryDirectory(dir=Path(config.cache).parent) as folder:
        preparation = prepare(settings(Path(folder) / "cache", config.limit or 0))
        loaded = {"cpu": capture}
        with (
            mock.patch("dflash_cache.runs.extract.load_captures", return_value=loaded),
            mock.patch.object(type(capture), "close"),  # it is used again
            extracting(preparation, ignore) as (_, pipeline, extraction),
        ):
            pipeline.start()
        target = pipeline.statistics["target"]
        assert extraction is not None
        return extraction.wall_s, {
            "target_busy": target.busy_s / target.alive_s,
            "target_blocked": target.blocked_s / target.alive_s,
        }


def of_bare(
    config: ExtractConfig, capture: LayerCapture, bare: Callable[[], object], rounds: int
) -> dict[str, Any]:
    """Tokens a second of an extraction over those of ``bare``: the ratio of their seconds."""
    ours, alone, shares = [], [], []
    for number in range(rounds + 1):  # the first one warms up
        for way in ("ours", "alone") if number % 2 else ("alone", "ours"):
            if way == "alone":
                alone.append(seconds(bare))
            else:
                found = extraction_s(config, capture)
                ours.append(found[0])
                shares.append(found[1])
    ratios = [one / other for one, other in zip(alone, ours, strict=True)][1:]
    return {
        "extract_of_bare": statistics.median(ratios),
        "extract_s": statistics.median(ours[1:]),
        "bare_s": statistics.median(alone[1:]),
        **{name: statistics.median(each[name] for each in shares[1:]) for name in shares[0]},
    }


def forwards(capture: LayerCapture, ids: list[torch.Tensor], rounds: int) -> dict[str, Any]:
    ways = {"stopped": stopped_pass, "whole": whole_pass}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in ways if number % 2 else list(ways)[::-1]:
            found[name].append(
                seconds(lambda name=name: [ways[name](capture, each) for each in ids])
            )
    ratios = [w / s for w, s in zip(found["whole"], found["stopped"], strict=True)][1:]
    return {
        "whole_of_stopped": statistics.median(ratios),
        **{f"{name}_s": statistics.median(each[1:]) for name, each in found.items()},
    }


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{field} is not known here")


def added_bytes(way: str, rows: int) -> int:
    """What the largest batch adds at most to this process's memory, after a small one."""
    with tempfile.TemporaryDirectory() as folder:
        preparation = prepare(settings(Path(folder) / "cache", rows))
        (capture,) = load_captures(preparation).values()
        ids = [padded(batch) for batch in batches_of(preparation)]
    run = stopped_pass if way == "stopped" else whole_pass
    run(capture, ids[0][:1, :8])
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = status_bytes("VmRSS")
    run(capture, max(ids, key=torch.numel))
    return status_bytes("VmHWM") - before


def in_new_process(way: str, arguments: argparse.Namespace) -> int:
    command = [sys.executable, __file__, "--memory-of", way, "--rows", str(arguments.rows)]
    command += ["--threads", str(arguments.threads)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def forward_report(
    capture: LayerCapture, ids: list[torch.Tensor], arguments: argparse.Namespace
) -> dict[str, Any]:
    memory = {way: in_new_process(way, arguments) for way in ("stopped", "whole")}
    return {
        **forwards(capture, ids, arguments.rounds),
        **{f"{way}_added_bytes": each for way, each in memory.items()},
        "stopped_of_whole_bytes": memory["stopped"] / memory["whole"],
    }


def compared(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    config, rounds = settings(folder / "cache", arguments.rows), arguments.rounds
    preparation = prepare(config)
    (capture,) = load_captures(preparation).values()
    batches = batches_of(preparation)
    ids = [padded(batch) for batch in batches]
    largest = max(sum(map(len, batch)) for batch in batches)
    simulated = SimulatedCapture(capture, arguments.token_us * 1e-6, largest)
    bare = {
        "simulated": lambda: [simulated.hidden_states(each) for each in batches],
        "demo": lambda: [stopped_pass(capture, each) for each in ids],
    }
    reports = {
        "simulated": lambda: of_bare(config, simulated, bare["simulated"], rounds),
        "demo": lambda: of_bare(config, capture, bare["demo"], rounds),
        "forward": lambda: forward_report(capture, ids, arguments),
    }
    return {
        "rows": arguments.rows,
        "tokens": int(preparation.survey.lengths.sum()),
        "batches": len(batches),
        "threads": torch.get_num_threads(),
        **{name: reports[name]() for name in arguments.only},
    }


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)  # another core is the writers'
    parser.add_argument("--token-us", type=float, default=200.0)
    parser.add_argument("--only", nargs="+", default=["simulated", "demo", "forward"])
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--memory-of", choices=("stopped", "whole"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(added_bytes(arguments.memory_of, arguments.rows))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        report = compared(arguments, Path(name))
    print(json.dumps(rounded(report), indent=1))


if __name__ == "__main__":
    main()
