import pytest

from dflash_cache.errors import ConfigError, RefusedError, ServerError
from dflash_cache.pipeline import Pipeline
from dflash_cache.serving import Client
from tests.support.chat_server import MODEL, ChatServer
from tests.support.threads import no_thread_left


@pytest.fixture
def server(tmp_path):
    server = ChatServer(tmp_path)
    yield server.start()
    server.kill()


def connect(address, **settings):
    return Client(address, **{"api_key": None, "timeout_s": 600.0, "retries": 9} | settings)


def ask(client, prompt):
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    return client.post("/chat/completions", body)


def stop_while_asking(server, absent_address):
    with (
        connect(server.address) as client,
        connect(absent_address) as other,
        Pipeline("test") as pipeline,  # it says so when a stage does not stop
    ):
        pipeline.register(client)
        pipeline.register(other)
        pipeline.spawn("ask", lambda: ask(client, "hang"))
        pipeline.spawn("find", lambda: ask(other, "hang"))
        pipeline.start()
        server.wait_for_requests(1)
        raise KeyError("a stop")


def test_a_stop_ends_the_wait_for_an_answer_and_the_wait_for_a_server(server, tmp_path):
    absent = ChatServer(tmp_path).address
    with no_thread_left(), pytest.raises(KeyError, match="a stop"):
        stop_while_asking(server, absent)


def test_an_answer_that_takes_too_long_is_asked_for_again(server):
    with (
        connect(server.address, timeout_s=0.2, retries=1) as client,
        pytest.raises(ServerError, match=r"asked 2 times: .*timed out"),
    ):
        ask(client, "hang")
    assert len(server.requests) == 2


def test_an_answer_that_comes_in_drops_is_given_no_more_time(server):
    with (
        connect(server.address, timeout_s=2.0, retries=0) as client,
        pytest.raises(ServerError, match="the answer takes too long"),
    ):
        ask(client, "drip")


def test_an_answer_nested_beyond_measure_is_no_json(server):
    with connect(server.address) as client, pytest.raises(ServerError, match="is no JSON"):
        ask(client, "deep")
    with connect(server.address) as client, pytest.raises(RefusedError, match=r"status 400, \[\["):
        ask(client, "refuse deep")


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="--server http://"):
        connect("http://[::1")
