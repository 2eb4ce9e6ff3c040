"""An object store that dies and comes back, writers that are killed, leases that are lost."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from dflash_cache import demo
from dflash_cache.cache import Cache, CacheWriter, open_storage, verify_cache
from dflash_cache.cache.lease import _state_of
from dflash_cache.config import ExtractConfig
from dflash_cache.errors import CacheBusyError, ConfigError
from dflash_cache.runs.extract import extract
from tests.support.caches import assert_same_content
from tests.support.runs import extract_config
from tests.support.s3_server import S3Server
from tests.support.threads import no_thread_left, until

# Far above what any of this takes, for a machine that is shared.
PATIENCE_S = 150
SETTINGS = {"limit": 40, "segment_tokens": 256, "batch_tokens": 256}


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    extract(extract_config(folder, **SETTINGS))
    return Cache.open(folder / "cache")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server that tests may kill, if they start it again."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        server.start()
        obstore.put(from_url("s3://bucket"), "exists", b"")  # the first put makes the bucket
        yield server
    server.kill()


@pytest.fixture
def bucket(server, request) -> str:
    """An address of the test's own."""
    return f"s3://bucket/{request.node.name.replace('[', '-').rstrip(']')}"


def config_for(bucket: str, **changes) -> ExtractConfig:
    return extract_config(Path("unused"), cache=bucket, **SETTINGS, **changes)


def started(bucket: str, devices: str = "cpu") -> "subprocess.Popen[str]":
    flags = {
        "data": demo.DATA, "target": demo.TARGET, "cache": bucket, "codec": "crc32c",
        "devices": devices,
    } | {name.replace("_", "-"): value for name, value in SETTINGS.items()}  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", "dflash_cache.cli", "extract", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    _, stderr = process.communicate(timeout=PATIENCE_S)
    return process.returncode, stderr


def wait_for_commits(bucket: str, process: "subprocess.Popen[str]", number: int) -> None:
    """Until ``number`` segments are committed, or the process has ended."""
    store = from_url(bucket)
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < deadline, "the extraction does not get on"
        if sum(len(batch) for batch in obstore.list(store, "commits")) >= number:
            return
        time.sleep(0.02)


def outage_and_rerun(server, bucket: str, local: Cache, outages: int, seed: int) -> None:
    """Kill the server ``outages`` times in the middle; a failed extraction is run again."""
    rng = random.Random(seed)
    process = started(bucket)
    for _ in range(outages):
        before = len(Cache.open(bucket).segments) if open_storage(bucket).exists("spec.json") else 0
        wait_for_commits(bucket, process, before + rng.randint(2, 10))
        server.kill()
        time.sleep(rng.uniform(0, 2))
        server.start()
    code, stderr = ended(process)
    assert code == 0 or (code == 1 and "s3://bucket" in stderr and "Traceback" not in stderr), (
        stderr
    )
    if code:
        extract(config_for(bucket))
    assert verify_cache(bucket) == []
    assert_same_content(Cache.open(bucket), local)


def test_an_outage_of_the_store_in_the_middle_costs_no_segment(server, bucket, local):
    outage_and_rerun(server, bucket, local, outages=1, seed=0)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_ten_outages_of_the_store_cost_no_segment(seed, server, bucket, local):
    outage_and_rerun(server, bucket, local, outages=2, seed=seed)


def kill_and_rerun(bucket: str, local: Cache, moments: int, seed: int) -> None:
    """Kill the extraction ``moments`` times, each followed by the next at once."""
    rng = random.Random(seed)
    for _ in range(moments):
        process = started(bucket, ",".join(["cpu"] * rng.choice([1, 3])))
        wait_for_commits(bucket, process, rng.randint(0, 20))
        time.sleep(rng.uniform(0, 0.2))
        process.send_signal(signal.SIGKILL)
        code, stderr = ended(process)
        assert code in (0, -signal.SIGKILL), stderr
    extract(config_for(bucket))
    assert verify_cache(bucket) == []
    assert_same_content(Cache.open(bucket), local)


def test_an_extraction_killed_while_it_writes_is_run_again_at_once(bucket, local):
    kill_and_rerun(bucket, local, 1, seed=0)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(6))
def test_an_extraction_killed_at_30_moments_equals_an_untroubled_one(seed, bucket, local):
    kill_and_rerun(bucket, local, 5, seed)


def test_a_store_that_stays_away_ends_the_run_with_an_error_that_names_the_object(
    server, bucket, local, monkeypatch
):
    config = config_for(bucket)
    with monkeypatch.context() as patch:
        patch.setattr("dflash_cache.cache.object_store.PATIENCE_S", 0.5)
        at_commit(patch, 3, server.kill)
        with no_thread_left(), pytest.raises(OSError, match=rf"{bucket}/.*error sending"):
            extract(config)
    server.start()
    extract(config)
    assert_same_content(Cache.open(bucket), local)


def test_an_address_where_nothing_answers_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.object_store.QUICK_S", 0.2)
    for name, value in S3Server(tmp_path / "s3").environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"--cache s3://bucket/nothing: .*error sending request"):
        extract(config_for("s3://bucket/nothing"))


def at_commit(monkeypatch, number: int, action) -> None:
    """Call ``action`` before the commit of this number."""
    commit, calls = CacheWriter.commit, []

    def commit_after_action(*arguments) -> None:
        calls.append(arguments)
        if len(calls) == number:
            action()
        commit(*arguments)

    monkeypatch.setattr(CacheWriter, "commit", commit_after_action)


@pytest.fixture
def quick_lease(monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.lease.LEASE_S", 5.0)
    monkeypatch.setattr("dflash_cache.cache.lease.RENEW_S", 0.1)
    monkeypatch.setattr("dflash_cache.cache.object_store.QUICK_S", 0.1)


def test_a_lease_that_cannot_be_renewed_ends_the_run(server, bucket, quick_lease, monkeypatch):
    """The store is away for longer than the lease: another writer may have come."""

    def outage() -> None:
        server.kill()
        time.sleep(max(0.0, storage._lease._until - time.time()))
        server.start()

    config = config_for(bucket, writers=1)
    storage = open_storage(config.cache)
    monkeypatch.setattr("dflash_cache.runs.preparation.open_storage", lambda _: storage)
    # No renewal comes between the store's return and the commit.
    monkeypatch.setattr(storage._lease, "_renew", lambda: None)
    with monkeypatch.context() as patch:
        at_commit(patch, 2, outage)
        with no_thread_left(), pytest.raises(CacheBusyError, match="could not be renewed in time"):
            extract(config)
    assert len(Cache.open(config.cache).segments) == 1


def test_a_lease_that_another_writer_took_ends_the_run(bucket, quick_lease, monkeypatch):
    config = config_for(bucket)
    storage = open_storage(config.cache)
    monkeypatch.setattr("dflash_cache.runs.preparation.open_storage", lambda _: storage)

    def taken() -> None:
        foreign = b'{"host": "elsewhere", "pid": 1, "nonce": "another", "until": 4e9}'
        obstore.put(from_url(config.cache), "lock", foreign)
        until(lambda: storage._lease._until == 0)

    at_commit(monkeypatch, 3, taken)
    with no_thread_left(), pytest.raises(CacheBusyError, match="run the same command again"):
        extract(config)
    assert len(Cache.open(config.cache).segments) == 2
    with pytest.raises(CacheBusyError, match="elsewhere"):  # whose lease it is now
        extract(config)


def test_renewals_go_on_after_an_outage_shorter_than_the_lease(server, bucket, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.lease.RENEW_S", 0.1)
    monkeypatch.setattr("dflash_cache.cache.object_store.QUICK_S", 0.1)
    storage = open_storage(bucket)
    with no_thread_left(), storage.lock():
        server.kill()
        time.sleep(0.5)
        server.start()
        held_until = storage._lease._until
        until(lambda: storage._lease._until > held_until)
    with open_storage(bucket).lock():
        pass


def test_a_store_that_is_away_at_the_end_hides_no_other_error(server, bucket, monkeypatch):
    monkeypatch.setattr("dflash_cache.cache.object_store.QUICK_S", 0.1)

    def block() -> None:
        with open_storage(bucket).lock():
            server.kill()
            raise KeyError("what ended the run")

    with pytest.raises(KeyError):
        block()
    server.start()


def edited(record: bytes, **changes: object) -> bytes:
    return json.dumps(json.loads(record) | changes).encode()


@pytest.fixture
def zombie():
    """The number of a process that was killed and that nobody has waited for."""
    process = subprocess.Popen(["sleep", "60"])
    process.kill()
    until(lambda: f"{process.pid} (sleep) Z" in Path(f"/proc/{process.pid}/stat").read_text())
    yield process.pid
    process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says when a process started")
def test_a_dead_writer_whose_number_another_process_has_never_blocks(bucket, zombie):
    """As in a container that starts again: the same host, the same process number."""
    storage, store = open_storage(bucket), from_url(bucket)
    with storage.lock():
        alive = bytes(obstore.get(store, "lock").bytes())
    another = {"pid": os.getppid(), "until": 4e9}
    for dead in (another | {"started": "1"}, {"pid": zombie, "until": 4e9}, {"until": 4e9}):
        obstore.put(store, "lock", edited(alive, **dead))
        with storage.lock():
            pass
    obstore.put(store, "lock", edited(alive, **another, started=_state_of(os.getppid())[1]))
    with pytest.raises(CacheBusyError, match='"started"'), storage.lock():
        pass
