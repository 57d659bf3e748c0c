"""The server over real HTTP, asked by OpenAI's own client and by none."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("fastapi") is None:  # imported where it is used: that takes long
    pytest.skip("the server needs fastapi", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the server needs it")

from tests.engine.support.process import Script
from tests.engine.support.serving import WAIT_SECONDS, Server, serving

ENDLESS = 1 << 40
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    errors = ((ord("!"), "NotFiniteError"), (ord("?"), "KVTransferError"), (ord("%"), "other"))
    with serving(Script(tokens_per_step=2, errors=errors)) as made:
        yield made


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    openai = pytest.importorskip("openai", reason="it needs Python 3.11")
    with openai.OpenAI(
        base_url=server.url, api_key="none", timeout=WAIT_SECONDS, max_retries=0
    ) as made:
        yield made


def test_openais_client_gets_whole_answers(client: Any) -> None:
    assert [model.id for model in client.models.list().data] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    answer = client.completions.create(model="tiny", prompt=["ab", "xyz"], max_tokens=5)
    assert [(one.index, one.text, one.finish_reason) for one in answer.choices] == [
        (0, "ababa", "length"),
        (1, "xyzxy", "length"),
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 10)
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=8, n=2)
    assert [one.message.content for one in chat.choices] == ["user: hi"] * 2


def test_openais_client_gets_streams(client: Any) -> None:
    parts = list(
        client.completions.create(
            model="tiny",
            prompt="abc",
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [part.choices[0].text for part in parts[:-1]] == ["ab", "ca", "b"]
    assert parts[-2].choices[0].finish_reason == "length"
    assert (parts[-1].choices, parts[-1].usage.total_tokens) == ([], 8)
    chat = client.chat.completions.create(model="tiny", messages=HI, max_tokens=4, stream=True)
    deltas = [part.choices[0].delta for part in chat]
    assert "".join(delta.content for delta in deltas) == "user"
    assert [delta.role for delta in deltas] == ["assistant", None]


def test_many_clients_are_answered_at_once(server: Server) -> None:
    def ask(number: int) -> str:
        body = {"model": "tiny", "prompt": f"<{number}>", "max_tokens": 12}
        status, answer = server.ask("POST", "/v1/completions", body)
        assert status == 200, answer
        return str(answer["choices"][0]["text"])

    with ThreadPoolExecutor(12) as threads:
        texts = list(threads.map(ask, range(12)))
    assert texts == [(f"<{number}>" * 4)[:12] for number in range(12)]


@pytest.mark.parametrize(
    ("path", "body", "status", "words", "param"),
    [
        (
            "completions",
            {"model": "gpt", "prompt": "a"},
            404,
            "no model 'gpt' here; there is",
            "model",
        ),
        ("completions", {"model": "tiny", "prompt": ""}, 400, "empty prompt", "prompt"),
        (
            "completions",
            {"model": "tiny", "prompt": "", "stream": True},
            400,
            "empty prompt",
            "prompt",
        ),
        ("completions", {"model": "tiny"}, 400, "prompt: Field required", "prompt"),
        ("completions", {"model": "tiny", "prompt": "a", "top_p": 7}, 400, "top_p=7", "top_p"),
        ("completions", {"model": "tiny", "prompt": "a", "echo": True}, 400, "echo=True", "echo"),
        (
            "chat/completions",
            {"model": "tiny", "messages": []},
            400,
            "messages is empty",
            "messages",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": HI, "logprobs": True, "top_logprobs": 99},
            400,
            "logprobs=99",
            "top_logprobs",
        ),
        (
            "chat/completions",
            {"model": "tiny", "messages": HI, "max_completion_tokens": 0},
            400,
            "max_tokens=0",
            "max_completion_tokens",
        ),
        (
            "completions",
            {"model": "tiny", "prompt": "a", "stop_token_ids": [5, 257]},
            400,
            "stop_token_ids has 257",
            "stop_token_ids",
        ),
        ("chat/completions", {"model": "tiny", "messages": "hi"}, 400, "messages: ", "messages"),
        ("completions", b"{", 400, "JSON", None),
        ("embeddings", {}, 404, "POST /v1/embeddings: Not Found", None),
    ],
)
def test_wrong_requests_have_errors_that_clients_read(
    path: str, body: Any, status: int, words: str, param: str | None, server: Server
) -> None:
    got, answer = server.ask("POST", f"/v1/{path}", body)
    assert got == status
    assert words in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"] == param


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "{{ raise_exception('there is no role ' + messages[0].role) }}",
        "{{ {}[messages[0].role | string].more }}",
        "{{ messages[0].role | int(default=1) + messages[0].role }}",
        "{{ messages[0].role }}",
    ],
)
def test_what_a_template_says_of_half_a_character_is_told(
    text: str, stream: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jinja2", reason="chat templates are Jinja2's")
    from sample_engine.tokenizers.chat_template import ChatTemplate
    from sample_engine.tokenizers.choice import BYTES

    template = ChatTemplate(text, {}, Path("here"))
    monkeypatch.setattr(server.streams.llm, "_text", BYTES._replace(template=template))
    body = {
        "model": "tiny",
        "messages": [{"role": "\ud800", "content": "a"}],
        "stream": stream,
    }
    status, answer = server.ask("POST", "/v1/chat/completions", body)
    assert (status, answer["error"]["param"]) == (400, "messages")
    assert "raise_exception" not in text or "no role \\ud800" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain; charset=utf-8"])
def test_a_body_that_is_not_said_to_be_json_is_refused_with_what_to_say(
    kind: str, path: str, server: Server
) -> None:
    """As curl sends it where nobody says what it is."""
    body = json.dumps({"model": "tiny", "prompt": "a", "messages": HI})
    with contextlib.closing(server.connect()) as connection:
        connection.request("POST", f"/v1/{path}", body, {"Content-Type": kind})
        answered = connection.getresponse()
        error = json.loads(answered.read())["error"]
    assert (answered.status, error["code"]) == (415, "unsupported_content_type")
    assert error["message"] == f"Content-Type must be 'application/json', not {kind!r}."


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [("!", 500, "not_finite"), ("?", 503, "kv_transfer"), ("%", 500, None)],
)
def test_what_no_client_can_put_right_is_an_error_of_the_server(
    end: str, status: int, code: str | None, server: Server
) -> None:
    """At once, after a part of the answer, and in a stream that has begun with another status."""
    for prompt, stream in ((end, False), (end, True), (f"abc{end}", False)):
        body = {"model": "tiny", "prompt": prompt, "stream": stream, "max_tokens": 9}
        got, answer = server.ask("POST", "/v1/completions", body)
        error = answer["error"]
        assert (got, error["type"], error["code"]) == (status, "server_error", code)
        assert error["param"] is None
        assert f"met {end!r}" in error["message"]
    body = {"model": "tiny", "prompt": f"abc{end}", "stream": True, "max_tokens": 9}
    with contextlib.closing(server.connect()) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answered = connection.getresponse()
        events = answered.read().decode().split("\n\n")
    assert answered.status == 200, "it was sent before the error"
    first, last, done = (event.removeprefix("data: ") for event in events if event)
    assert json.loads(first)["choices"][0]["text"] == "ab"
    assert json.loads(last)["error"]["code"] == code
    assert done == "[DONE]"


def test_a_method_or_a_model_that_there_is_not(server: Server) -> None:
    assert server.ask("GET", "/v1/completions")[0] == 405
    assert server.ask("GET", "/v1/models/nope")[0] == 404
    server.wait_until_idle()
    assert server.ask("GET", "/health") == (200, {"status": "ok", "running": 0})


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place(stream: bool, server: Server) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": ENDLESS, "stream": stream}
    with contextlib.closing(server.connect()) as connection:
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        if stream:
            assert connection.getresponse().readline().startswith(b"data: {")
        else:
            while not server.streams.count:  # until it is under way
                server.ask("GET", "/health")
    server.wait_until_idle()
    assert (
        server.ask("POST", "/v1/completions", {**body, "max_tokens": 1, "stream": False})[0] == 200
    )


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_while_it_waits_frees_its_place(stream: bool) -> None:
    body = {"model": "tiny", "prompt": "a", "max_tokens": ENDLESS, "stream": True}
    headers = {"Content-Type": "application/json"}
    with serving(at_once=1, waiting=1) as small, contextlib.closing(small.connect()) as busy:
        busy.request("POST", "/v1/completions", json.dumps(body), headers)
        assert busy.getresponse().readline().startswith(b"data: {")
        waits = json.dumps({**body, "stream": stream})
        with contextlib.closing(small.connect()) as second:
            second.request("POST", "/v1/completions", waits, headers)
            small.wait_until(2)
        small.wait_until(1)


def test_a_long_conversation_does_not_hold_others_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, others_are_done = threading.Event(), threading.Event()
    make, waited = server.streams.llm.chat_prompt, []

    def slow(messages: Any) -> Any:
        begun.set()
        waited.append(others_are_done.wait(WAIT_SECONDS))
        return make(messages)

    monkeypatch.setattr(server.streams.llm, "chat_prompt", slow)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(server.ask("POST", "/v1/chat/completions", body))
    )
    thread.start()
    assert begun.wait(WAIT_SECONDS)
    assert server.ask("GET", "/health")[0] == 200
    others_are_done.set()
    thread.join(WAIT_SECONDS)
    assert waited == [True]
    assert [status for status, _ in answers] == [200]


def test_more_requests_than_may_wait_are_refused() -> None:
    with serving(at_once=1, waiting=0) as small, contextlib.closing(small.connect()) as busy:
        body = {"model": "tiny", "prompt": "a", "max_tokens": ENDLESS, "stream": True}
        headers = {"Content-Type": "application/json"}
        busy.request("POST", "/v1/completions", json.dumps(body), headers)
        assert busy.getresponse().readline().startswith(b"data: {")
        status, answer = small.ask("POST", "/v1/completions", {**body, "max_tokens": 1})
        assert (status, answer["error"]["code"]) == (503, "overloaded")


def test_an_engine_that_is_gone_is_told_and_ends_the_server() -> None:
    with serving() as broken, contextlib.closing(broken.connect()) as busy:
        body = {"model": "tiny", "prompt": "a", "max_tokens": ENDLESS, "stream": True}
        headers = {"Content-Type": "application/json"}
        busy.request("POST", "/v1/completions", json.dumps(body), headers)
        stream = busy.getresponse()
        assert stream.readline().startswith(b"data: {")
        broken.streams.llm.shutdown()
        rest = stream.read().decode()
        assert '"code":"engine_dead"' in rest, "a stream that has begun says it in a part"
        assert rest.endswith("data: [DONE]\n\n")
        status, answer = broken.ask("POST", "/v1/completions", {**body, "stream": False})
        assert (status, answer["error"]["code"]) == (500, "engine_dead")
        assert broken.ask("GET", "/health")[0] == 503
    assert broken.deaths == ["dead", "dead"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_engine_that_dies_while_nobody_asks_is_found_out(method: str) -> None:
    with serving(worker_method=method) as idle:
        assert idle.ask("GET", "/health") == (200, {"status": "ok", "running": 0})
        os.kill(idle.streams.llm.info()["core_pid"], signal.SIGKILL)
        until = time.monotonic() + WAIT_SECONDS
        while not idle.deaths:
            assert time.monotonic() < until, "nobody has noticed"
            time.sleep(0.01)
        status, answer = idle.ask("GET", "/health")
        assert status == 503
        assert "was killed by SIGKILL" in answer["status"]
    assert idle.deaths == ["dead"]
