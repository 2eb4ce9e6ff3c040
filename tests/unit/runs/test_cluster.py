"""Which addresses of a Ray cluster are refused before Ray waits for them."""

import socket

import pytest

from dflash_cache.errors import ConfigError
from dflash_cache.runs.cluster import _require_reachable


def test_an_address_where_nothing_listens_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"--address 127.0.0.1:1: no Ray cluster answers there"):
        _require_reachable("127.0.0.1:1")
    with pytest.raises(ConfigError, match="no Ray cluster answers there"):
        _require_reachable("127.0.0.1:99999")


def test_where_something_listens_ray_is_asked_and_other_forms_are_left_to_it():
    with socket.create_server(("127.0.0.1", 0)) as server:
        _require_reachable(f"127.0.0.1:{server.getsockname()[1]}")
    for address in ("auto", "local", "nonsense"):
        _require_reachable(address)
