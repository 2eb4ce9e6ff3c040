"""An OpenAI-compatible server on loopback, in a process of its own that can be killed.

It answers by a function of the messages, or, with a target, as transformers does. What a prompt
begins with can ask for a fault: ``refuse``, ``busy`` (the first two times), ``empty``, ``think``,
``call``, ``cut``, ``hang``, ``drip`` (blanks without end), ``deep`` (brackets). One that holds
``once`` has it the first time alone. Every request for an answer is logged before it is answered.
"""

import argparse
import contextlib
import hashlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

START_S = 60.0
MODEL = "tiny"


def answer_to(messages: list[dict]) -> str:
    """Another one for each other history."""
    said = json.dumps([[each["role"], each["content"]] for each in messages])
    return f"answer {hashlib.sha256(said.encode()).hexdigest()[:12]} to {messages[-1]['content']}"


def target_answers(folder: str):
    """What transformers itself makes of messages, greedily."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    lock = threading.Lock()

    def answer(messages: list[dict], max_tokens: int) -> str:
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt"
        )
        with lock:
            output = model.generate(**prompt, max_new_tokens=max_tokens, do_sample=False)
        new = output[0, prompt["input_ids"].shape[1] :]
        return tokenizer.decode(new, skip_special_tokens=True)

    return answer


class ChatServer:
    """Started and killed at will, always on the same port; ``requests`` outlive it."""

    def __init__(self, folder: Path, **options: object) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}/v1"
        self._log = folder / "requests.jsonl"
        self._options = {"port": self.port, "log": self._log, **options}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def requests(self) -> list[dict]:
        """The bodies of all requests for an answer, in the order in which they came."""
        lines = self._log.read_bytes().splitlines() if self._log.exists() else []
        return [json.loads(line) for line in lines]

    def start(self) -> "ChatServer":
        words = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen([sys.executable, __file__, *map(str, words)])
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, "the server ended"
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return self
            time.sleep(0.02)
        raise TimeoutError("the server did not start")

    def kill(self) -> None:
        """As kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_for_requests(self, number: int) -> None:
        deadline = time.monotonic() + START_S
        while len(self.requests) < number:
            assert time.monotonic() < deadline, f"{len(self.requests)} of {number} requests came"
            time.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    """One request; what all share is set by ``main``."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one packet
    options: argparse.Namespace
    log: io.FileIO
    answer = staticmethod(lambda messages, _max_tokens: answer_to(messages))
    asked: ClassVar[Counter[str]] = Counter()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        else:
            self.reply(200 if self.path == "/health" else 404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.options.key
        if key and self.headers["Authorization"] != f"Bearer {key}":
            self.refuse(401, "the key is wrong")
        elif body["model"] != MODEL:
            self.refuse(404, f"{body['model']} is not served")
        else:
            self.log.write(json.dumps(body).encode() + b"\n")  # one write, for threads
            self.complete(body, body["messages"][-1]["content"])

    def complete(self, body: dict, prompt: str) -> None:
        if "deep" in prompt:
            self.send(400 if prompt.startswith("refuse") else 200, b"[" * 100_000)
            return
        if prompt.startswith("refuse"):
            self.refuse(400, "maximum context length is 16 tokens")
            return
        times = self.asked[prompt]
        self.asked[prompt] += 1
        if prompt.startswith("busy") and times < 2:
            self.refuse((429, 503)[times], "too many")
            return
        if prompt.startswith("drip"):
            self.drip()
            return
        time.sleep(600 if prompt.startswith("hang") else self.options.delay)
        content = self.answer(body["messages"], body["max_tokens"])
        message = {"role": "assistant", "content": content}
        if not (times and "once" in prompt):
            message |= fault(prompt)
        ended = "length" if prompt.startswith("cut") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": ended}
        self.reply(200, {"choices": [choice], "usage": {"completion_tokens": 7}})

    def refuse(self, status: int, message: str) -> None:
        self.reply(status, {"error": {"message": message, "code": status}})

    def reply(self, status: int, body: dict) -> None:
        self.send(status, json.dumps(body).encode())

    def drip(self) -> None:
        """The head of an answer, then a blank now and then, as long as somebody listens."""
        self.send(200, b"", length=600)
        while True:
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def send(self, status: int, content: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)


def fault(prompt: str) -> dict:
    """What stands in the message instead, or besides."""
    function = {"name": "look", "arguments": '{"at": 1}'}
    faults = {
        "empty": {"content": None, "reasoning_content": "thought"},
        "think": {"reasoning_content": "thought"},
        "call": {"tool_calls": [{"id": "1", "type": "function", "function": function}]},
    }
    return next((given for word, given in faults.items() if prompt.startswith(word)), {})


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients of the tests leave as they like."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--target")
    parser.add_argument("--key")
    Handler.options = options = parser.parse_args()
    Handler.log = options.log.open("ab", buffering=0)
    if options.target:
        Handler.answer = staticmethod(target_answers(options.target))
    Server(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
