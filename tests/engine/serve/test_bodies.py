"""Bodies of requests that are too large."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator

import pytest

if importlib.util.find_spec("fastapi") is None:  # imported where it is used: that takes long
    pytest.skip("the server needs it", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the server needs it")

from fastapi import HTTPException
from starlette.types import Message, Receive, Scope, Send

from sample_engine.serve.bodies import MOST_BYTES, LimitedBodies
from tests.engine.support.serving import serving


def parts(*sizes: int) -> Iterator[Message]:
    """A body in parts of these sizes."""
    for number, size in enumerate(sizes, 1):
        more = number < len(sizes)
        yield {"type": "http.request", "body": b"x" * size, "more_body": more}


def read(most: int, messages: Iterator[Message]) -> int:
    """Read a body; return how many bytes came through."""
    found = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal found
        more = True
        while more:
            message = await receive()
            found += len(message["body"])
            more = message["more_body"]

    async def receive() -> Message:
        return next(messages)

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent here")

    asyncio.run(LimitedBodies(app, most)({"type": "http"}, receive, send))
    return found


def test_bodies_within_the_limit_come_through() -> None:
    for sizes in ((0,), (10,), (3, 3, 4), (10, 0)):
        assert read(10, parts(*sizes)) == sum(sizes)


def test_larger_ones_are_read_to_their_end_and_refused() -> None:
    for sizes in ((11,), (4, 4, 4), (11, 5, 5), (10, 1)):
        messages = parts(*sizes)
        with pytest.raises(HTTPException, match="the body has more than 10 bytes") as refused:
            read(10, messages)
        assert refused.value.status_code == 413
        assert not list(messages), "a client that still sends reads no answer"


def test_a_client_is_told_and_the_server_goes_on() -> None:
    with serving() as server:
        body = b'{"model": "tiny", "prompt": "a", "max_tokens": 1}'
        status, answer = server.ask("POST", "/v1/completions", body.rjust(MOST_BYTES + 1))
        assert (status, answer["error"]["type"]) == (413, "invalid_request_error")
        assert f"more than {MOST_BYTES} bytes" in answer["error"]["message"]
        assert server.ask("POST", "/v1/completions", body.rjust(MOST_BYTES))[0] == 200
