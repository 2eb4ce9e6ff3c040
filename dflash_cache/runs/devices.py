"""Which devices a command uses when it is not told."""

import torch

from dflash_cache.errors import ConfigError
from dflash_cache.train import local_rank, num_local_ranks, num_ranks
from dflash_cache.types import DtypeName


def target_devices(
    named: tuple[str, ...], *, spare_last: bool = False, used: bool = True
) -> tuple[str, ...]:
    """``named``, else every CUDA device (but the last, if it is spared and not the only one).

    Several joined by + hold one target. Those that are not ``used`` need not be in this machine.
    """
    if named:
        for device in (part for group in named for part in group.split("+")):
            check_device("--devices", device, used=used)
        return named
    count = torch.cuda.device_count()
    if spare_last and count > 1:
        count -= 1
    return tuple(f"cuda:{index}" for index in range(count)) or ("cpu",)


def single_device(named: str) -> str:
    """``named``, else the last CUDA device, else the CPU."""
    if named:
        check_device("--device", named)
        return named
    count = torch.cuda.device_count()
    return f"cuda:{count - 1}" if count else "cpu"


def training_device(named: str) -> str:
    """As ``single_device``; where torchrun started several processes, each gets its own."""
    if num_ranks() == 1 or named == "cpu":
        return single_device(named)
    if named and num_local_ranks() > 1:
        raise ConfigError(
            f"--device {named}: {num_local_ranks()} processes of this machine cannot share it; "
            "leave --device out, and each takes one of its own"
        )
    count = torch.cuda.device_count()
    if count and local_rank() >= count:
        raise ConfigError(
            f"--nproc-per-node {num_local_ranks()}: this machine has {count} CUDA devices; start "
            "as many processes, or use --device cpu"
        )
    return named or (f"cuda:{local_rank()}" if count else "cpu")


def check_device(flag: str, name: str, *, used: bool = True) -> None:
    """``ConfigError`` if it is no device, or is to be ``used`` and not in this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{flag} {name}: no device name; use cpu or cuda:0") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"{flag} {name}: only cpu and cuda devices are supported")
    if used and device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"{flag} {name}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu"
        )


def default_dtype(device: str, named: DtypeName | None) -> DtypeName:
    return named or ("bfloat16" if device.startswith("cuda") else "float32")
