"""A thousand prompts, while the server is killed twice and the program once."""

import json
import subprocess
import sys

import pytest

from dflash_cache.config import RegenerateConfig
from dflash_cache.errors import CacheMismatchError
from dflash_cache.runs.regenerate import regenerate
from tests.support.chat_server import MODEL, ChatServer, answer_to
from tests.support.tiny_tokenizers import save_chats

NUM_PROMPTS = 1000
CONCURRENCY = 32
PATIENCE_S = 120


@pytest.fixture
def server(tmp_path):
    server = ChatServer(tmp_path, delay=0.08)
    yield server.start()
    server.kill()


@pytest.fixture
def started():
    """Processes that must not outlive the test."""
    processes: list[subprocess.Popen] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def test_each_of_1000_prompts_is_answered_once_and_in_order_through_kills(
    tmp_path, server, started
):
    prompts = [f"prompt {number}" for number in range(NUM_PROMPTS)]
    data = save_chats(tmp_path / "prompts.jsonl", [{"prompt": each} for each in prompts])
    out = tmp_path / "chats.jsonl"

    def begin(retries: int) -> subprocess.Popen:
        words = ["regenerate", data, "--out", out, "--server", server.address, "--retries", retries]
        words += ["--temperature", 0.7, "--seed", 5, "--concurrency", CONCURRENCY, "--json"]
        command = [sys.executable, "-m", "dflash_cache.cli", *map(str, words)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, **pipes))
        return started[-1]

    def recorded() -> set[str]:
        journal = tmp_path / ".chats.jsonl.unfinished" / "journal"
        records = [
            json.loads(line.partition(b" ")[2]) for line in journal.read_bytes().split(b"\n")[:-1]
        ]
        rows = [each["row"] for each in records]
        assert len(set(rows)) == len(rows)
        return {prompts[row] for row in rows}

    first = begin(retries=10)
    server.wait_for_requests(200)
    server.kill()
    server.start()  # the program waits for it
    server.wait_for_requests(450)
    first.kill()
    first.wait()
    after_kill, num_asked = recorded(), len(server.requests)
    assert 0 < len(after_kill) < NUM_PROMPTS

    second = begin(retries=1)
    server.wait_for_requests(700)
    server.kill()
    _, stderr = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 1
    assert "does not answer, asked 2 times" in stderr
    assert "give the same command again" in stderr
    assert stderr.count("does not answer") == 1  # and not once a thread
    asked_again = {each["messages"][0]["content"] for each in server.requests[num_asked:]}
    assert not asked_again & after_kill
    after_failure, num_asked = recorded(), len(server.requests)
    assert after_kill < after_failure
    assert not out.exists()

    server.start()
    last = begin(retries=10)
    stdout, stderr = last.communicate(timeout=PATIENCE_S)
    assert last.returncode == 0, stderr
    report = json.loads(stdout.splitlines()[-1])
    assert (report["rows"], report["chats"], report["answers"]) == (NUM_PROMPTS,) * 3
    assert report["resumed"] == len(after_failure)
    rest = {each["messages"][0]["content"] for each in server.requests[num_asked:]}
    assert rest == set(prompts) - after_failure
    numbers = {prompt: number for number, prompt in enumerate(prompts)}
    seeds = {(numbers[each["messages"][0]["content"]], each["seed"]) for each in server.requests}
    assert seeds == {(number, 5 + number) for number in range(NUM_PROMPTS)}
    # Asked twice were at most those under way, or not yet recorded, at each of the three kills.
    assert len(server.requests) <= NUM_PROMPTS + 3 * 4 * CONCURRENCY

    rows = [json.loads(line) for line in out.read_text().splitlines()]
    turns = [{"role": "user", "content": prompt} for prompt in prompts]
    assert rows == [
        {"messages": [turn, {"role": "assistant", "content": answer_to([turn])}]} for turn in turns
    ]
    record = json.loads((tmp_path / "chats.jsonl.settings.json").read_text())
    assert record["report"] == report
    wanted = {"model": MODEL, "temperature": 0.7, "top_p": 1.0, "max_tokens": 2048, "seed": 5}
    assert {name: record["settings"][name] for name in wanted} == wanted
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "chats.jsonl", "chats.jsonl.settings.json", "prompts.jsonl", "requests.jsonl"
    ]  # fmt: skip

    server.kill()  # what is done needs no server
    settings = {"data": data, "out": out, "server": server.address, "seed": 5}
    assert regenerate(RegenerateConfig(**settings, temperature=0.7)) == report | {"resumed": 1000}
    with pytest.raises(CacheMismatchError, match=r"--temperature 0\.6, before 0\.7"):
        regenerate(RegenerateConfig(**settings, temperature=0.6))
