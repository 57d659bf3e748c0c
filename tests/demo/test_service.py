"""The demo's service over real HTTP: many requests, clients that leave, scripts that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo.service.script_runs import ScriptRuns, ScriptSettings
from tests.support.isolation import is_gone
from tests.support.sessions import failure, needs_torch, outcomes, run_session
from tests.support.signs import wait_until

if importlib.util.find_spec("fastapi") is None:  # imported where it is used: that takes long
    pytest.skip("the demo's service needs fastapi", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the demo's service needs it")

ROOT = Path(__file__).resolve().parents[2]
POST = ROOT / "demo" / "service" / "post.py"
WAIT_SECONDS = 240.0
STUB = """
import json, os, subprocess, sys, time

text = sys.stdin.read()
if text.startswith("hang"):
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"])
    with open(text.split()[1] + ".part", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    os.rename(file.name, text.split()[1])
    time.sleep(1000)
elif text == "die":
    os.kill(os.getpid(), 9)
elif text == "fail":
    sys.exit("no model here")
elif text == "flood":
    while True:
        os.write(1, b"x" * 65536)
elif text == "binary":
    os.write(1, bytes(range(256)))
else:
    print(json.dumps({"punctuated": text + ".", "arguments": sys.argv[1:]}))
"""


@dataclass
class Service:
    """A service that runs, and how to talk to it."""

    process: subprocess.Popen[str]
    port: int

    def ask(self, text: Any) -> tuple[int, Any]:
        """Send a text; return the status and the answer."""
        connection = self.connect(text)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            body = answer.read()
            return answer.status, json.loads(body) if body else None

    def connect(self, text: Any) -> http.client.HTTPConnection:
        """Send a text; the answer is yet to come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/postprocess", json.dumps({"text": text}), headers)
        return connection

    def running(self) -> list[int]:
        """Return the scripts that it runs."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            found: list[int] = json.loads(connection.getresponse().read())["running"]
            return found


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[Service]:
    """Run the service with the stub; nothing of it is left afterwards."""
    script = folder / "stub.py"
    script.write_text(STUB)
    command = [sys.executable, "-m", "demo.service", f"--script={script}", *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().rpartition(":")[2])
            yield Service(process, port)
        finally:
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("service"), "--at-once=3") as made:
        yield made


def pids_in(path: Path) -> list[int]:
    """Wait until a script that hangs has written its processes."""
    wait_until(path.exists, "the script", WAIT_SECONDS)
    return [int(word) for word in path.read_text().split()]


def test_ten_requests_at_a_time_get_their_own_answers(service: Service) -> None:
    texts = [f"text {number}" for number in range(10)]
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(service.ask, texts))
    arguments = ["--start-method=spawn"]
    expected = [{"punctuated": f"{text}.", "arguments": arguments} for text in texts]
    assert answers == [(200, each) for each in expected]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("die", "it was killed by SIGKILL"),
        ("fail", "it ended with status 1"),
        ("flood", "it wrote more than 1048576 bytes"),
        ("binary", "the script's answer is no JSON"),
    ],
)
def test_a_script_that_fails_is_told_and_the_next_one_runs(
    service: Service, text: str, words: str
) -> None:
    status, answer = service.ask(text)
    assert (status, answer["error"].startswith(words)) == (502, True), answer
    assert answer.get("stderr", "").strip() == ("no model here" if text == "fail" else "")
    assert service.running() == []


def test_a_script_is_started_with_an_environment_that_uvloop_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec

    async def as_uvloop_would(*command: str, env: Any, **more: Any) -> asyncio.subprocess.Process:
        if type(env) is not dict:
            raise TypeError(f"Expected dict, got {type(env).__name__}")
        return await start(*command, env=env, **more)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", as_uvloop_would)
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.stdin.read().upper())", encoding="utf-8")
    runs = ScriptRuns(ScriptSettings(script))
    assert asyncio.run(runs.answer("words")) == b"WORDS\n"


def test_what_is_no_text_is_refused(service: Service) -> None:
    for wrong in ("", 3, "x" * 20_001):
        assert service.ask(wrong)[0] == 422


def test_the_script_of_a_client_that_went_away_is_ended(service: Service, tmp_path: Path) -> None:
    connection = service.connect(f"hang {tmp_path / 'pids'}")
    pids = pids_in(tmp_path / "pids")
    assert service.running() == pids[:1]
    connection.close()
    assert all(is_gone(pid) for pid in pids)
    wait_until(lambda: service.running() == [])  # what has ended the script, notes it a bit later
    assert service.ask("text")[0] == 200


def test_a_script_that_hangs_and_a_service_that_is_stopped(tmp_path: Path) -> None:
    with serving(tmp_path, "--limit=20") as service:
        status, answer = service.ask(f"hang {tmp_path / 'first'}")
        assert (status, answer) == (504, {"error": "it did not end within 20 s"})
        assert all(is_gone(pid) for pid in pids_in(tmp_path / "first"))
        connection = service.connect(f"hang {tmp_path / 'second'}")
        pids = pids_in(tmp_path / "second")
        service.process.send_signal(signal.SIGTERM)
        service.process.wait(WAIT_SECONDS)
        assert all(is_gone(pid) for pid in pids)
        connection.close()


WATCHED = """
import http.client, json, subprocess, sys

import pytest

ROOT = {root!r}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_post(method):
    command = [sys.executable, "-m", "demo.service", "--start-method=" + method]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
            headers = {{"Content-Type": "application/json"}}
            connection.request("POST", "/postprocess", json.dumps({{"text": "def f("}}), headers)
            answer = connection.getresponse()
            told = json.loads(answer.read())
            connection.close()
        finally:
            process.terminate()
    if method == "fork":
        assert answer.status == 502
        assert told["error"] == "it ended with status 1"
    else:
        assert answer.status == 200, told
        assert sorted(told) == ["punctuated", "summary"]
"""


@needs_torch
def test_as_reported_it_fails_by_name_and_with_spawn_it_works(pytester: pytest.Pytester) -> None:
    """The service has touched CUDA each time: that is not what its scripts fail of."""
    pytester.makepyfile(test_service=WATCHED.format(root=str(ROOT)))
    result = run_session(
        pytester,
        *("-v", "--cuda-fork-check", "--cuda-fork-device=phantom"),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        time_limit=400,
    )
    assert outcomes(result) == {"test_post[fork]": "FAILED", "test_post[spawn]": "PASSED"}
    lines = POST.read_text(encoding="utf-8").splitlines()
    asks = next(n for n, line in enumerate(lines, 1) if "torch.cuda.is_available()" in line)
    forks = next(n for n, line in enumerate(lines, 1) if "worker.start()" in line)
    told = failure(result, "test_post[fork]")
    where = rf"post.py:{forks}: CUDA was initialized at"
    assert where in told
    assert f"post.py:{asks}" in told
    assert "demo/service/app.py" in result.stdout.str()  # it touched, too, and is not blamed
    assert "app.py" not in told
