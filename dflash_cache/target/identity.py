"""Which target this is, by content, without loading it."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from dflash_cache.cache import TargetIdentity
from dflash_cache.errors import ConfigError, DataError

# Tensors up to a MiB are hashed whole, of larger ones 16 KiB of every MiB: a target trained further
# is known by it, and 50 GB are not read.
SAMPLE_BYTES, STRIDE_BYTES = 16 << 10, 1 << 20
NO_TOKENIZER = "none"
NOT_READ = "not read"
TEXT_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")


def resolve_target(target: str, revision: str | None, *, weights: bool = True) -> Path:
    """The folder of ``target``: a local one, or the snapshot of a hub id, fetched if need be.

    Without ``weights`` they are not fetched.
    """
    if not target:
        raise ConfigError("--target is empty; give a model's folder or a hub id")
    folder = Path(target)
    if not folder.is_dir():
        try:
            folder = Path(
                snapshot_download(
                    target,
                    revision=revision,
                    allow_patterns=[*TEXT_FILES, *(["*.safetensors"] if weights else [])],
                )
            )
        except HFValidationError as error:
            raise ConfigError(
                f"--target {target}: there is no such folder, and the hub has no such names"
            ) from error
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise ConfigError(
                f"--target {target} is neither a folder nor a model that the hub gives: {error}"
            ) from error
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--target {target}: {folder} has no config.json; give a model's folder")
    return folder


def identify_target(target: str, revision: str | None, *, weights: bool = True) -> TargetIdentity:
    """Hash the configuration, a sample of every weight, the tokenizer and its chat template.

    Without ``weights`` they may be absent, and the identity is good for a plan only.
    """
    folder = resolve_target(target, revision, weights=weights)
    return TargetIdentity(
        target=target,
        revision=revision or "",
        target_config_hash=_hash_json(folder / "config.json", ignore=("transformers_version",)),
        target_weights_hash=_hash_weights(folder) if weights else NOT_READ,
        tokenizer_hash=_hash_files(folder, "tokenizer.json", "tokenizer.model", "vocab.json"),
        chat_template_hash=_hash_template(folder),
    )


def _hash_json(path: Path, ignore: tuple[str, ...]) -> str:
    content = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in content.items() if key not in ignore}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _hash_files(folder: Path, *names: str) -> str:
    digest = hashlib.sha256()
    present = [folder / name for name in names if (folder / name).is_file()]
    for path in present:
        digest.update(path.read_bytes())
    return digest.hexdigest() if present else NO_TOKENIZER


def _hash_template(folder: Path) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        template = path.read_text(encoding="utf-8")
    elif (folder / "tokenizer_config.json").is_file():
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        template = json.dumps(config.get("chat_template"))
    else:
        return NO_TOKENIZER
    return hashlib.sha256(template.encode()).hexdigest()


def _hash_weights(folder: Path) -> str:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise DataError(
            f"{folder} has no *.safetensors weights; convert the model with save_pretrained"
        )
    digest = hashlib.sha256()
    for name, info, sample in sorted(part for path in files for part in _tensor_samples(path)):
        digest.update(f"{name} {info}\n".encode() + sample)
    return digest.hexdigest()


def _tensor_samples(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """(name, dtype and shape, sampled bytes) of every tensor in a safetensors file."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < header_bytes < path.stat().st_size:
            raise DataError(
                f"{path} is no whole safetensors file; fetch it again (git lfs pull, if it is a "
                "pointer)"
            )
        header: dict[str, Any] = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        for name, info in header.items():
            start, stop = info["data_offsets"]
            sample_bytes = SAMPLE_BYTES if stop - start > STRIDE_BYTES else STRIDE_BYTES
            samples = []
            for offset in range(start, stop, STRIDE_BYTES):
                file.seek(8 + header_bytes + offset)
                samples.append(file.read(min(sample_bytes, stop - offset)))
            yield name, f"{info['dtype']} {info['shape']}", b"".join(samples)
