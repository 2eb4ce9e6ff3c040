import obstore
import pytest
from obstore.store import from_url

from tests.support.s3_server import S3Server


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A running S3 server with no bucket yet."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bucket(s3_server, monkeypatch, request) -> str:
    """An address of the test's own in the server, which the environment leads to."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    obstore.put(from_url("s3://bucket"), "exists", b"")  # the first put makes the bucket
    return f"s3://bucket/{abs(hash(request.node.nodeid))}"
