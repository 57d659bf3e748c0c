"""A server that is told to stop: what is under way is told why it ends, and nothing is logged."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

if importlib.util.find_spec("fastapi") is None:  # imported where it is used: that takes long
    pytest.skip("the server needs fastapi", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the server needs it")

import uvicorn

from sample_engine.serve.ending import EndingServer
from tests.engine.support.process import PROJECT
from tests.engine.support.serving import WAIT_SECONDS, serving

ENDLESS = {"model": "tiny", "prompt": "a", "max_tokens": 1 << 40}
JSON = {"Content-Type": "application/json"}


def test_a_stream_and_an_answer_that_are_under_way_are_told_why_they_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        ThreadPoolExecutor(1) as threads,
        serving(last_seconds=0, log_level="warning") as server,
        contextlib.closing(server.connect()) as busy,
    ):
        whole = threads.submit(server.ask, "POST", "/v1/completions", ENDLESS)
        busy.request("POST", "/v1/completions", json.dumps({**ENDLESS, "stream": True}), JSON)
        answer = busy.getresponse()
        assert answer.readline().startswith(b"data: {")
        while server.streams.count < 2:
            server.ask("GET", "/health")
        server.stop()
        *_, error, done = [line for line in answer.read().splitlines() if line]
        told = json.loads(error.removeprefix(b"data: "))["error"]
        assert (told["code"], told["type"]) == ("stopped", "server_error")
        assert "being stopped" in told["message"]
        assert done == b"data: [DONE]"
        status, body = whole.result(WAIT_SECONDS)
        assert (status, body["error"]["code"]) == (503, "stopped")
    assert not caplog.records


class _Streams:
    """Counts how often it was stopped."""

    def __init__(self) -> None:
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_who_interrupts_twice_waits_for_nothing_and_still_ends_the_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def shut_down(self: uvicorn.Server, sockets: object) -> None:
        self.force_exit = True

    monkeypatch.setattr(uvicorn.Server, "shutdown", shut_down)
    streams = _Streams()
    server = EndingServer(uvicorn.Config("no:app"), streams, 1000)  # type: ignore[arg-type]
    assert (server.config.timeout_graceful_shutdown or 0) > 1000
    ended: list[str] = []

    class Lifespan:
        async def shutdown(self) -> None:
            ended.append("application")

    server.lifespan = Lifespan()

    async def stop() -> None:
        task = asyncio.create_task(asyncio.sleep(0))
        server.server_state.tasks.add(task)
        await server.shutdown()
        assert task.done()

    asyncio.run(stop())
    assert streams.stops == 1
    assert ended == ["application"]


def accepts(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS).close()
    except OSError:
        return False
    return True


def test_two_interrupts_are_told_by_the_status_alone() -> None:
    command = [sys.executable, "-m", "sample_engine", "serve", "--port=0", "--device=cpu"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=PROJECT, text=True, stdout=pipe, stderr=pipe) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        guard = threading.Timer(WAIT_SECONDS, server.kill)  # for a server that hangs
        guard.start()
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
            with contextlib.closing(client):
                body = {"model": "tiny", "prompt": "a", "max_tokens": None, "ignore_eos": True}
                headers = {"Content-Type": "application/json"}
                asked = json.dumps({**body, "stream": True})
                client.request("POST", "/v1/completions", asked, headers)
                stream = client.getresponse()
                assert stream.readline().startswith(b"data: {")
                server.send_signal(signal.SIGINT)
                while accepts(port):  # until then the first one has not counted
                    time.sleep(0.01)
                server.send_signal(signal.SIGINT)
                stream.read()
            assert server.wait() == 130
            assert server.stderr.read() == ""
        finally:
            guard.cancel()
