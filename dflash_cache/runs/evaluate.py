"""``evaluate``: acceptance length, losslessness and speed, measured by decoding."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dflash_cache.cache import CacheSpec, require_same_identity
from dflash_cache.config import EvaluateConfig
from dflash_cache.drafter.export import load_drafter
from dflash_cache.drafter.lookup import PromptLookup
from dflash_cache.drafter.model import DFlashDrafter
from dflash_cache.drafter.proposer import DrafterProposer
from dflash_cache.errors import CacheMismatchError, ConfigError
from dflash_cache.target import (
    LayerCapture,
    Target,
    TargetShape,
    identify_target,
    require_decodable,
    resolve_target,
)

from .bench import Bench, Way
from .devices import default_dtype, single_device
from .evaluated import evaluation_file, keep_evaluation
from .examples import Examples
from .progress import OnProgress, ignore
from .prompts import DrafterFolder, Prompts, choose_prompts


def evaluate(config: EvaluateConfig, on_progress: OnProgress = ignore) -> dict[str, Any]:
    """Decode prompts by the target alone, with each drafter and with prompt lookup.

    Returns the report: acceptance_length (pooled: tokens over verify steps), lossless (share of
    outputs equal to the target's own; None when sampling), mismatches, speedup, tokens,
    by_category (where the data has categories), steps (of its training, None if not known),
    examples (what became of the drafts of a few prompts), and untrained on request. Of several
    drafters these stand in ``drafters``, by folder. For all: prompts, held_out (whether the
    training data is known not to hold them), temperature, prompt_lookup.
    """
    drafters = [DrafterFolder.load(each) for each in config.drafter]
    folder = resolve_target(config.target, config.revision)
    shape = TargetShape.load(folder, trust_remote_code=config.trust_remote_code)
    _check_target(config, drafters, shape)
    out = evaluation_file(config)
    prompts = choose_prompts(config, drafters)
    examples = Examples.choose(config, prompts, folder)
    device = single_device(config.device)
    config = replace(config, device=device, dtype=default_dtype(device, config.dtype))
    target = Target.load(
        folder,
        dtype=default_dtype(device, config.dtype),
        device=device,
        trust_remote_code=config.trust_remote_code,
    )
    report = _measure(config, target, drafters, prompts, examples, on_progress)
    if out:
        keep_evaluation(out, config, report, drafters[0])
    return report


def _measure(
    config: EvaluateConfig,
    target: Target,
    drafters: Sequence[DrafterFolder],
    prompts: Prompts,
    examples: Examples,
    on_progress: OnProgress,
) -> dict[str, Any]:
    captures = [LayerCapture(target, each.config.target_layer_ids) for each in drafters]
    require_decodable(captures[0])
    alone = Way(captures[0])
    lookup = Way(captures[0], PromptLookup, max(each.config.block_size for each in drafters))
    pairs = list(zip(drafters, captures, strict=True))
    trained = [_way(load_drafter(each.folder), capture) for each, capture in pairs]
    untrained = [
        _way(DFlashDrafter.fresh(each.config, config.seed).eval(), capture)
        for each, capture in pairs
        if config.untrained
    ]
    bench = Bench(config, prompts, [alone, *trained, lookup, *untrained])
    bench.run(on_progress)
    figures = [bench.figures(way, alone) for way in trained]
    for own, each, way in zip(figures, drafters, trained, strict=True):
        own |= {"steps": each.training.get("steps"), "examples": examples.of(way.decoded)}
    for own, way in zip(figures, untrained, strict=False):
        own["untrained"] = {"acceptance_length": way.acceptance_length}
    for capture in captures:
        capture.close()
    by_folder = {str(each.folder): own for each, own in zip(drafters, figures, strict=True)}
    return {
        **(figures[0] if len(figures) == 1 else {"drafters": by_folder}),
        "prompts": len(prompts.token_ids),
        "held_out": prompts.held_out,
        "temperature": config.temperature,
        "prompt_lookup": {
            "acceptance_length": lookup.acceptance_length,
            "speedup": lookup.speedup(alone),
        },
    }


def _way(drafter: DFlashDrafter, capture: LayerCapture) -> Way:
    target = capture.target
    embedding, head = target.embedding, target.head
    drafter = drafter.to(embedding)  # its device and dtype
    return Way(
        capture, lambda: DrafterProposer(drafter, embedding, head), drafter.config.block_size
    )


def _check_target(
    config: EvaluateConfig, drafters: Sequence[DrafterFolder], shape: TargetShape
) -> None:
    if config.batch_size > 1 and shape.hybrid:
        raise ConfigError(
            f"--batch-size {config.batch_size}: --target {config.target} has linear-attention "
            "layers, which decode one prompt at a time; use --batch-size 1"
        )
    found = (shape.num_layers, shape.hidden_size)
    for each in drafters:
        expected = (each.config.num_target_layers, each.config.hidden_size)
        if found != expected:
            raise CacheMismatchError(
                f"--drafter {each.folder} is for a target of {expected[0]} layers and hidden size "
                f"{expected[1]}; --target {config.target} has {found[0]} and {found[1]}"
            )
    made = [each for each in drafters if each.training]
    if not made:
        return
    identity = identify_target(config.target, config.revision)
    for each in made:
        require_same_identity(
            identity,
            CacheSpec.from_dict(each.training["cache"]),
            what=f"--drafter {each.folder} was trained for another target than {config.target}",
            remedy="Give the target that the drafter was trained for",
        )
