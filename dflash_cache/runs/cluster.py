"""The Ray cluster that an extraction runs on."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dflash_cache.config import ExtractConfig
from dflash_cache.errors import ConfigError
from dflash_cache.pipeline import descendants, ending, keeping_handlers

REACHABLE_S = 10.0


def import_ray() -> Any:
    """``ConfigError`` if Ray is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    try:
        import ray
    except ImportError as error:
        raise ConfigError("--engine ray needs Ray: pip install 'dflash-cache[ray]'") from error
    return ray


@contextmanager
def connected(config: ExtractConfig) -> Iterator[None]:
    """Be connected to the cluster that ``config`` names, if it names one.

    One that is started here ends with the block. A connection that is there already is used and
    left as it is.
    """
    if config.engine != "ray":
        yield
        return
    ray = import_ray()
    if ray.is_initialized():
        yield
        return
    others = descendants(os.getpid())
    started: set[int] = set()
    try:
        try:
            with keeping_handlers():
                _connect(ray, config.address or os.environ.get("RAY_ADDRESS") or "local")
        finally:
            started = descendants(os.getpid()) - others
        yield
    finally:
        # Ray gives its processes a second; what they started may last longer on a busy machine.
        started |= {pid for parent in started for pid in descendants(parent)}
        with keeping_handlers(), ending(started):
            ray.shutdown()


def _require_reachable(address: str) -> None:
    """``ConfigError`` if nothing listens at HOST:PORT, for which Ray would wait without a word."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        return  # Ray knows other forms, and says what is wrong with them
    try:
        socket.create_connection((host, int(port)), REACHABLE_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"--address {address}: no Ray cluster answers there: {error}") from error


def _connect(ray: Any, address: str) -> None:
    _require_reachable(address)
    started_here = {"include_dashboard": False} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **started_here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"--address {address}: no Ray cluster answers there: {error}. One that was started "
            "with a token needs RAY_AUTH_MODE=token, and that token on each node"
        ) from error


def placements(named: tuple[str, ...]) -> tuple[str, ...]:
    """``named``, else one for each GPU of the cluster, else one CPU. Ray chooses which they are.

    Each is ``cpu``, or as many CUDA devices as it names, joined by +. ``ConfigError`` if the
    cluster has fewer.
    """
    there = import_ray().cluster_resources()
    chosen = named or ("cuda:0",) * int(there.get("GPU", 0)) or ("cpu",)
    for kind, needed in (
        ("CPU", len(chosen)),  # its threads read and write beside the target
        ("GPU", sum(map(num_gpus, chosen))),
    ):
        if needed > (have := there.get(kind, 0)):
            raise ConfigError(
                f"--devices {','.join(chosen)}: {needed} {kind}s are needed, and the cluster has "
                f"{have:g}; name fewer, or let more nodes join it first"
            )
    return chosen


def num_gpus(placement: str) -> int:
    """``ConfigError`` if it is no placement."""
    devices = placement.split("+")
    for device in devices:
        kind, _, number = device.partition(":")
        if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
            raise ConfigError(f"--devices {placement}: no device name; use cpu or cuda:0")
    if devices == ["cpu"]:
        return 0
    if "cpu" in devices:
        raise ConfigError(f"--devices {placement}: a CPU does not join CUDA devices")
    return len(devices)


def devices_of(placement: str) -> str:
    """What a worker calls its devices: it sees those alone that Ray gave it."""
    count = num_gpus(placement)
    return "+".join(f"cuda:{index}" for index in range(count)) or "cpu"
