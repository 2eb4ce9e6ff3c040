"""Each field of the identity is compared by the commands that docs/reference/identity.md names.

The fields and the answers come from its table. Each record is changed in one field, its checksum is
right, so that only the comparison can tell.
"""

import re
import shutil

import pytest

from dflash_cache import demo
from dflash_cache.config import BothConfig, EvaluateConfig, MergeConfig, VerifyConfig
from dflash_cache.errors import CacheMismatchError
from dflash_cache.runs.both import both
from dflash_cache.runs.evaluate import evaluate
from dflash_cache.runs.extract import extract
from dflash_cache.runs.merge import merge
from dflash_cache.runs.train import train
from dflash_cache.runs.verify import verify
from tests.support.identity import change_cache, change_json, compared_by
from tests.support.runs import extract_config, train_config

# Told from the drafter's own configuration, in words.
IN_WORDS = {"num_target_layers": "of 9 layers", "hidden_size": "hidden size 264"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished cache of few rows, the same merged into another, a run of one step."""
    folder = tmp_path_factory.mktemp("whole")
    extract(settings(folder))
    merge(MergeConfig(caches=(str(folder / "cache"),), into=str(folder / "merged")))
    train(run_config(folder))
    return folder


@pytest.fixture
def made(whole):
    """``whole``, whose records are put back afterwards: a refusal changes nothing else."""
    paths = (
        "cache/spec.json",
        "run/run.json",
        "run/export/training.json",
        "run/export/config.json",
    )
    before = {whole / path: (whole / path).read_bytes() for path in paths}
    yield whole
    for path, content in before.items():
        path.write_bytes(content)


def settings(folder, **changes):
    return extract_config(folder, limit=10, codec="lz4", **changes)


def run_config(folder, **changes):
    return train_config(folder, steps=1, holdout=2, **changes)


def evaluation(folder) -> EvaluateConfig:
    return EvaluateConfig(
        target=str(demo.TARGET), drafter=(folder / "run" / "export",), data=demo.DATA,
        device="cpu", prompts=1, new_tokens=2,
    )  # fmt: skip


def named(field: str) -> str:
    """A message that names ``field`` on a line of its own, and no other field."""
    if field == "format_version":
        return "format version 2, this program reads 1"
    return rf"(?s)^[^\n]*:\n  (part 0, )?{field}: [^\n]*, expected [^\n]*\n[^\n]*$"


@pytest.mark.parametrize("field", compared_by("cache"))
def test_a_cache_of_other_identity_is_not_resumed(field, made):
    change_cache(made / "cache", field)
    with pytest.raises(CacheMismatchError, match=named(field)):
        extract(settings(made))


@pytest.mark.parametrize("field", sorted(set(compared_by("cache")) & set(compared_by("merge"))))
def test_nor_is_it_appended_to(field, made):
    change_cache(made / "cache", field)
    with pytest.raises(CacheMismatchError, match=named(field)):
        extract(settings(made, append=True))


@pytest.mark.parametrize("field", ["tokenizer_hash", "plan_seed"])
@pytest.mark.parametrize("overlap", [False, True])
def test_both_phases_together_compare_as_well(overlap, field, made):
    change_cache(made / "cache", field)
    config = BothConfig(extract=settings(made), train=run_config(made), overlap=overlap)
    with pytest.raises(CacheMismatchError, match=named(field)):
        both(config)


@pytest.mark.parametrize("field", ["tokenizer_hash", "plan_seed"])
def test_so_does_a_repair_which_then_gives_nothing_up(field, made):
    change_cache(made / "cache", field)
    before = (made / "cache" / "commits.log").read_bytes()
    with pytest.raises(CacheMismatchError, match=named(field)):
        verify(VerifyConfig(cache=str(made / "cache"), repair=True))
    assert (made / "cache" / "commits.log").read_bytes() == before


@pytest.mark.parametrize("field", compared_by("merge"))
def test_caches_of_other_identity_are_not_merged(field, made):
    change_cache(made / "cache", field)
    config = MergeConfig(caches=(str(made / "cache"),), into=str(made / "merged"))
    with pytest.raises(CacheMismatchError, match=named(field)):
        merge(config)


@pytest.mark.parametrize("field", compared_by("run"))
def test_a_run_does_not_go_on_with_a_cache_of_other_identity(field, made):
    change_json(made / "run" / "run.json", field)
    with pytest.raises(CacheMismatchError, match=named(field)):
        train(run_config(made))


@pytest.mark.parametrize("field", sorted(set(compared_by("target")) - set(IN_WORDS)))
def test_a_drafter_is_not_evaluated_with_another_target(field, made):
    change_json(made / "run" / "export" / "training.json", field)
    with pytest.raises(CacheMismatchError, match=named(field)):
        evaluate(evaluation(made))


@pytest.mark.parametrize("field", IN_WORDS)
def test_a_drafter_for_a_target_of_another_shape_is_refused_by_its_configuration(field, made):
    assert field in compared_by("target")
    path = made / "run" / "export" / "config.json"
    more = 1 if field == "num_target_layers" else 8
    text = re.sub(rf'("{field}": )(\d+)', lambda m: m[1] + str(int(m[2]) + more), path.read_text())
    path.write_text(text)
    with pytest.raises(CacheMismatchError, match=IN_WORDS[field]):
        evaluate(evaluation(made))


def test_what_is_not_compared_may_differ(made, tmp_path):
    """Of the table's "no", all at once; merging other datasets and parts has tests of its own."""
    never, merged = set(compared_by("run", "no")), set(compared_by("merge", "no"))
    assert never == {"target", "revision", "dataset", "num_rows", "num_segments"}
    assert set(compared_by("cache", "no")) - never == {"parts"}
    assert merged - never == {"parts", "dataset_fingerprint"}
    elsewhere = never - {"num_rows", "num_segments"}  # those say where the cache's files begin
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    change_json(folder / "run" / "run.json", *never)
    change_json(folder / "run" / "export" / "training.json", *compared_by("target", "no"))
    assert evaluate(evaluation(folder))["prompts"] == 1
    change_cache(folder / "cache", *elsewhere)
    extract(settings(folder))
    train(run_config(folder))
