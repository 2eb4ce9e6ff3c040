"""Requests to a server, sent again while it does not answer."""

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import httpx2

from dflash_cache.errors import ConfigError, RefusedError, ServerError
from dflash_cache.pipeline import Cancelled, Monitor, Pause

from .connections import Connections

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
CONNECT_S = 10.0  # below the time that a stop may take
_AGAIN = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
_OF_ALL = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
_HEADERS = ("Content-Type", "Retry-After")  # that are looked at
_CONTINUE = "give the same command again: what is answered is kept"


class Client:
    """What a server answers to requests, for any number of threads.

    Overload, errors of the server and lost connections are met by sending a request again, after
    waits that double; ``ServerError`` after ``retries`` of them, and at once where no request can
    succeed. ``RefusedError`` if the server refuses this request alone. ``Cancelled`` after
    ``abort``, and for all threads but the first once one has given up.
    """

    def __init__(self, address: str, *, api_key: str, timeout_s: float, retries: int) -> None:
        self.address = address.rstrip("/")
        self._retries = retries
        self._timeout_s = timeout_s
        self._connections = Connections()
        self._pause = Pause("a wait for the server")
        self._giving_up = Monitor("giving up")
        try:
            httpx2.URL(address)
        except httpx2.InvalidURL as error:
            raise ConfigError(f"--server {address}: {error}") from error
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx2.Timeout(timeout_s, connect=CONNECT_S, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def get(self, path: str) -> Any:
        return self._send("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        text = json.dumps(body, ensure_ascii=False)
        # Half a character, which UTF-8 has no bytes for, becomes the escape that JSON has for it.
        return self._send("POST", path, text.encode("utf-8", "backslashreplace"))

    def abort(self) -> None:
        """Wake every thread that waits for the server; it raises ``Cancelled``."""
        self._connections.shut_down()
        self._pause.abort()

    def _send(self, method: str, path: str, content: bytes | None) -> Any:
        """The JSON that the server answers with."""
        wait_s, failure = FIRST_WAIT_S, ""
        for number in range(self._retries + 1):
            self._pause.wait(min(wait_s, LONGEST_WAIT_S) if number else 0.0)
            wait_s *= 2 if number else 1
            try:
                response = self._request(method, path, content)
            except httpx2.RequestError as error:
                if self._connections.is_shut_down:
                    raise Cancelled(self.address) from error
                failure = str(error) or type(error).__name__
                continue
            if response.is_success:
                return self._content(response)
            failure = f"status {response.status_code}, {_message(response)}"
            self._require_hope(response, failure)
            wait_s = max(wait_s, _asked_wait_s(response))
        raise self._given_up(
            f"--server {self.address} does not answer, asked {self._retries + 1} times: {failure}. "
            f"Once it does, {_CONTINUE}"
        )

    def _given_up(self, message: str) -> ServerError:
        """For the first thread that gives up; it stops all others, which would say the same."""
        with self._giving_up:
            self._pause.wait(0.0)
            self.abort()
        return ServerError(message)

    def _request(self, method: str, path: str, content: bytes | None) -> httpx2.Response:
        """The response, whole; ``ReadTimeout`` if more of it still comes after the time given."""
        end_s = time.monotonic() + self._timeout_s
        with self._http.stream(
            method,
            self.address + path,
            content=content,
            headers={"Content-Type": "application/json"},
            extensions={"trace": self._connections.trace},
        ) as response:
            parts: list[bytes] = []
            for part in response.iter_bytes():
                if parts and time.monotonic() > end_s:
                    raise httpx2.ReadTimeout("the answer takes too long", request=response.request)
                parts.append(part)
        headers = {name: response.headers[name] for name in _HEADERS if name in response.headers}
        return httpx2.Response(response.status_code, headers=headers, content=b"".join(parts))

    def _content(self, response: httpx2.Response) -> Any:
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise self._given_up(
                f"--server {self.address}: {response.text[:200]!r} is no JSON. Is this the address "
                f"of an OpenAI-compatible server? Mend it and {_CONTINUE}"
            ) from error

    def _require_hope(self, response: httpx2.Response, failure: str) -> None:
        """Return if a request that failed may succeed later."""
        status = response.status_code
        if status in _AGAIN or response.is_server_error:
            return
        if status in _OF_ALL or not response.is_client_error:
            raise self._given_up(
                f"--server {self.address}: {failure}. Look at the address, at --model and at the "
                f"key in OPENAI_API_KEY, and {_CONTINUE}"
            )
        raise RefusedError(f"the server refuses it: {failure}")


def _asked_wait_s(response: httpx2.Response) -> float:
    """How long an overloaded server asks to be left alone; it may also name a date."""
    asked = response.headers.get("Retry-After", "")
    return float(asked) if asked.isdecimal() else 0.0


def _message(response: httpx2.Response) -> str:
    """The reason in the body, in the forms that servers give it."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        return response.text.strip()[:500]
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return str(message or body)[:500]
