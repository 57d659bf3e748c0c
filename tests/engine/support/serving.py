"""A server of the engine in a thread of this process, and clients of it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sample_engine.llm import LLM
from tests.engine.support.process import Script

WAIT_SECONDS = 300.0
"""For hangs alone."""


class Server(NamedTuple):
    """A server that runs: where, the streams of its engine, what was told of its end; its stop."""

    port: int
    streams: Any
    deaths: list[str]
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        """What a client of OpenAI's is given."""
        return f"http://127.0.0.1:{self.port}/v1"

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send a request; return status and answer."""
        with contextlib.closing(self.connect()) as connection:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def wait_until_idle(self) -> None:
        """Wait until no request is under way."""
        self.wait_until(0)

    def wait_until(self, count: int) -> None:
        """Wait until so many requests are under way."""
        until = time.monotonic() + WAIT_SECONDS
        while (running := self.ask("GET", "/health")[1]["running"]) != count:
            assert time.monotonic() < until, f"{running} requests are under way, not {count}"
            time.sleep(0.01)


@contextlib.contextmanager
def serving(
    script: Script | None = None,
    *,
    at_once: int = 8,
    waiting: int = 8,
    last_seconds: float = 3,
    log_level: str = "critical",
    worker_method: str = "inproc",
) -> Iterator[Server]:
    """Serve a core that repeats its prompt until the block ends, or the server is stopped."""
    import uvicorn

    from sample_engine.serve.app import Service, create_app
    from sample_engine.serve.ending import EndingServer
    from sample_engine.serve.streams import Streams

    llm = LLM(core_factory=script or Script(), worker_method=worker_method)
    streams = Streams(llm, at_once=at_once, waiting=waiting)
    deaths: list[str] = []
    service = Service(streams, "tiny", on_dead=lambda: deaths.append("dead"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(create_app(service), log_level=log_level, log_config=None)
        server = EndingServer(config, streams, last_seconds)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            port = listening.getsockname()[1]
            yield Server(port, streams, deaths, lambda: setattr(server, "should_exit", True))
        finally:
            server.should_exit = True
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive(), "the server does not end"
