"""A place where the commands of the documentation run, on small stand-ins of what they name."""

import contextlib
import json
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from datasets import load_from_disk

from dflash_cache import demo

from .launched import RayCluster, run_torchrun
from .refusals import run

NUM_ROWS = 24
STAND_INS = (  # what a page names, and what is in its place
    (r"Qwen/[\w.-]+|/models/[\w.-]+", "TARGET"),
    (r"cuda:\d(\+cuda:\d)*", "cpu"),
    (r"(?<=\s)/(?=mnt/|data/|shared/)", ""),
    (r"--step \d+", "--step 2"),
)
# By what is in the workshop, under which names the pages have it.
NAMES = {
    "tokens": ("tokens", "data/tokens", "shared/tokens"),
    "more-tokens": ("more-tokens",),
    "prompts.jsonl": ("prompts.jsonl",),
    "chats.jsonl": ("chats.jsonl", "chats/chats.jsonl"),
    "cache": ("cache", "cache-27b", "shared/cache", "try", "mnt/a/whole", "dflash-demo/cache"),
    "share-1": ("share-1", "cache-1", "cache-a", "mnt/a/cache"),
    "share-2": ("share-2", "cache-2", "cache-b", "mnt/b/cache"),
    "share-3": ("share-3",),
    "run": ("run", "run-27b", "a", "b"),
    "run/export": ("drafter", "earlier"),
    "drafter.toml": ("drafter.toml", "drafter-27b.toml"),
}
# Put behind a command: of a flag that is given twice the last one counts.
EXTRACTION = "--segment-tokens 1024 --batch-tokens 1024 --keep-last"
TRAINING = "--steps 2 --draft-layers 2 --block-size 4 --anchors 4 --batch-size 2 --holdout 2"
OWN_FILE = "--data tokens --target TARGET --devices cpu --max-seq-len 512 --target-layers 1,3,5"
SMALLER = {
    "regenerate": "--limit 4 --max-tokens 4",
    "plan": "--segment-tokens 1024 --batch-tokens 1024",
    "extract": EXTRACTION,
    "train": TRAINING,
    "both": f"{EXTRACTION} {TRAINING} --limit {NUM_ROWS} --device cpu --no-evaluate",
    "evaluate": "--prompts 1 --new-tokens 4",
}
MADE_BY = {"extract": ("--cache",), "both": ("--cache", "--out"), "merge": ("--into",)}
BUCKET = "s3://bucket"


class Workshop:
    """Has a dataset, a cache, a run; ``run`` gives a line copies of those that it names."""

    def __init__(self, folder: Path, server: str) -> None:
        """Make them in ``folder``; ``server`` answers chats."""
        self._folder = folder
        self._server = server
        (folder / "trials").mkdir()
        rows = load_from_disk(str(demo.DATA))
        rows.select(range(NUM_ROWS)).save_to_disk(folder / "tokens")
        rows.select(range(NUM_ROWS, NUM_ROWS + 8)).save_to_disk(folder / "more-tokens")
        said = [[{"role": "user", "content": f"Say {number}."}] for number in range(4)]
        answer = {"role": "assistant", "content": "It is said."}
        _write_lines(folder / "prompts.jsonl", [{"messages": each} for each in said])
        _write_lines(folder / "chats.jsonl", [{"messages": [*each, answer]} for each in said])
        with contextlib.chdir(folder):
            for command in (
                f"extract --data tokens --target TARGET --cache cache {EXTRACTION}",
                *(
                    f"extract --data tokens --target TARGET --cache share-{share} "
                    f"--share {share}/3 {EXTRACTION}"
                    for share in (1, 2, 3)
                ),
                f"train --cache cache --out run {TRAINING}",
                "init --for qwen3.6-27b --out drafter.toml",
            ):
                _succeed(command)

    def run(self, line: str, cluster: RayCluster | None = None) -> None:
        """Run it in a folder of its own, on the ``cluster`` if there is one; it has to succeed."""
        for pattern, stand_in in STAND_INS:
            line = re.sub(pattern, stand_in, line)
        start, command = _divided(line.replace("http://localhost:8000/v1", self._server))
        name = command.split()[0]
        smaller = SMALLER.get(name, "")
        if "--config" in command:
            smaller += f" {OWN_FILE}"
        trial = Path(tempfile.mkdtemp(dir=self._folder / "trials"))
        roots = {word.removesuffix("/export") for word in _taken(command)}  # run of run/export
        with contextlib.chdir(trial):
            for source, names in NAMES.items():
                for each in names:
                    if roots & {each, str(Path(each).parent)}:
                        _copy(self._folder / source, Path(each))
            if "--config" in command:
                _copy(self._folder / "tokens", Path("tokens"))
            command = self._in_bucket(command, trial.name) + f" {smaller}"
            if start.startswith("torchrun"):
                run_torchrun(start + command)
            else:
                (cluster.run if cluster else _succeed)(command)
        shutil.rmtree(trial)

    def _in_bucket(self, command: str, trial: str) -> str:
        """``command`` with a place of its own in the bucket, where a cache lies if it reads one."""
        found = re.search(rf"{BUCKET}/\S+", command)
        if found is None:
            return command
        place = found.group().replace(BUCKET, f"{BUCKET}/{trial}")
        if found.group() in _taken(command):
            _succeed(f"merge {self._folder / 'cache'} --into {place}")
        return command.replace(found.group(), place)


def _divided(line: str) -> tuple[str, str]:
    """What starts the program, and the command that it is to run."""
    found = re.match(r"dflash-cache |torchrun .* -m dflash_cache\.cli ", line)
    assert found, line
    return found[0], line[found.end() :]


def _taken(command: str) -> set[str]:
    """Words of a command but for the names of what it makes."""
    name, *words = shlex.split(command, comments=True)
    makes = () if "--append" in words else MADE_BY.get(name, ("--out", "-o"))
    before = ["", *words]
    return {
        word.rstrip("/") for word, flag in zip(words, before, strict=False) if flag not in makes
    }


def _copy(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to)


def _succeed(command: str) -> None:
    code, errors = run(command)
    assert code == 0, f"dflash-cache {command}: {errors}"


def _write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
