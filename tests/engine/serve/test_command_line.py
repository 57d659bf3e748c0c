"""``python -m sample_engine serve``: wrong input, a port that is taken, a whole life."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("fastapi") is None:  # imported where it is used: that takes long
    pytest.skip("the server needs fastapi", allow_module_level=True)
pytest.importorskip("uvicorn", reason="the server needs it")

import uvicorn

import sample_engine.llm
from sample_engine.__main__ import main
from sample_engine.errors import EngineDeadError, WeightsError
from sample_engine.serve import command_line
from sample_engine.serve.streams import Streams
from tests.engine.support.process import PROJECT, children, wait_until_gone

WAIT_SECONDS = 600.0


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    try:
        code = main(["serve", *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "http"], "'http' is no port: 0 to 65535"),
        (["--port", "65536"], "'65536' is no port"),
        (["--max-num-seqs", "0"], "'0' is no whole number above 0"),
        (["--speculative-config", "{"], "is not JSON"),
        (["--speculative-config", "[]"], "is not a JSON object"),
        (["--kv-transfer-config", "7"], "argument --kv-transfer-config: '7' is not a JSON object"),
        (["--port=0", '--kv-transfer-config={"kv_role": "kv_bath"}'], "kv_role='kv_bath' is not"),
        (["--port=0", '--kv-transfer-config={"kv_rank": 1}'], "no setting 'kv_rank'"),
        (["--tensor-parallel-size", "two"], "--tensor-parallel-size: invalid int value: 'two'"),
        (["--port=0", "--tensor-parallel-size=0"], "tensor_parallel_size=0 must be a whole number"),
        (["--port=0", "--device=cpu", "--tensor-parallel-size=7"], "num_attention_heads=6 is no"),
        (
            ["--port=0", "--tensor-parallel-size=2", "--kv-transfer-config={}"],
            "kv_transfer_config and tensor_parallel_size=2 do not go together",
        ),
        (
            ["--model=/no/such/model", "--served-model-name", "\udcff"],
            "--served-model-name: '\\udcff' has no UTF-8",
        ),
        (["--port=0", "--model", "\udcff"], "model='\\udcff' has no UTF-8"),
        (["--nope"], "unrecognized arguments: --nope; see serve --help"),
        (["--port=0", "--model", "/no/such/model"], "/no/such/model"),
        (["--port=0", "--host", "203.0.113.1"], "port 0 of 203.0.113.1 cannot be had"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "203.0.113.1" in arguments:
        monkeypatch.setattr(sample_engine.llm, "LLM", _Engine)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("sample_engine: error: ")
    assert words in err


def test_a_working_directory_that_was_deleted_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    code, out, err = run(capsys, "--port=0", "--device=cpu")
    assert (code, out) == (2, "")
    assert err.startswith("sample_engine: error: The working directory was deleted")


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(sample_engine.llm, "LLM")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = run(capsys, f"--port={port}")
    assert code == 2
    assert f"port {port} of 127.0.0.1 cannot be had: Address already in use" in err


def test_a_library_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = run(capsys, "--port=0")
    assert code == 2
    assert "uvicorn" in err
    assert "pip install fastapi uvicorn" in err


class _Engine:
    """Stands for an engine."""

    def __init__(self, model: str, **settings: Any) -> None:
        if model == "broken":
            raise WeightsError("the weights are cut short")
        self.settings = settings

    def info(self) -> dict[str, Any]:
        return {}

    def shutdown(self) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_engine.llm, "LLM", _Engine)


def test_the_options_are_settings_of_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[_Engine] = []

    def engine(model: str, **settings: Any) -> _Engine:
        made.append(_Engine(model, **settings))
        return made[0]

    monkeypatch.setattr(sample_engine.llm, "LLM", engine)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *arguments, **named: None)
    shared = {"kv_connector": "SharedMemoryConnector", "kv_role": "kv_producer"}
    options = ["--tensor-parallel-size=2", f"--kv-transfer-config={json.dumps(shared)}"]
    assert run(capsys, "--port=0", "--max-model-len=64", *options)[0] == 0
    assert made[0].settings == {
        "tensor_parallel_size": 2,
        "kv_transfer_config": shared,
        "max_model_len": 64,
        "max_num_seqs": 64,
    }


@pytest.mark.usefixtures("engine")
def test_an_engine_that_does_not_start_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "--port=0", "--model=broken")
    assert (code, err) == (1, "sample_engine: error: the weights are cut short\n")


@pytest.mark.usefixtures("engine")
def test_an_engine_that_is_gone_ends_the_server_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Streams] = []
    create = Streams.__init__

    def keep(self: Streams, *args: Any, **kw: Any) -> None:
        create(self, *args, **kw)
        made.append(self)

    def serve(self: Any, sockets: list[socket.socket]) -> None:
        made[0].dead = EngineDeadError("it was killed")

    monkeypatch.setattr(Streams, "__init__", keep)
    monkeypatch.setattr(uvicorn.Server, "run", serve)
    code, out, err = run(capsys, "--port=0")
    assert code == 1
    assert out.startswith("http://127.0.0.1:")
    assert err == "sample_engine: error: the engine is gone: it was killed\n"


@pytest.mark.usefixtures("engine")
def test_an_address_that_cannot_be_told_ends_the_server_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(_Engine, "shutdown", lambda self: ended.append("engine"))
    monkeypatch.setattr(uvicorn.Server, "run", lambda *arguments, **named: ended.append("served"))
    with open("/dev/full", "w", encoding="utf-8") as full:
        with monkeypatch.context() as patches:
            patches.setattr(sys, "stdout", full)
            code = command_line.main(["--port=0"])
        with contextlib.suppress(OSError):
            full.close()
    assert code == 1
    assert ended == ["engine"]
    assert "address cannot be written to stdout: [Errno 28]" in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
def test_where_stdout_is_closed_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[str] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda *arguments, **named: served.append("yes"))
    monkeypatch.setattr(sys, "stdout", None)
    assert command_line.main(["--port=0"]) == 0
    assert served == ["yes"]
    sys.stdout.close()


@pytest.mark.usefixtures("engine")
def test_ctrl_c_ends_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, sockets: list[socket.socket]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    assert run(capsys, "--port=0")[0] == 130
    assert command_line._parser().parse_args([]).port == 8000


def test_a_whole_life_with_the_own_model_on_two_ranks_in_a_folder_that_goes(
    tmp_path: Path,
) -> None:
    before = children()
    folder = tmp_path / "goes"
    folder.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
    options = ["--port=0", "--max-model-len=128", "--device=cpu", "--tensor-parallel-size=2"]
    command = [sys.executable, "-m", "sample_engine", "serve", *options]
    with subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True
    ) as server:
        guard = threading.Timer(WAIT_SECONDS, server.kill)  # for a server that hangs
        guard.start()
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), address
            folder.rmdir()
            below = _descendants(server.pid)
            assert len(below) >= 2
            body = {"model": "tiny", "prompt": "def f(", "max_tokens": 4, "temperature": 0}
            answer = _ask(f"{address}/v1/completions", body)
            assert answer["usage"]["completion_tokens"] == 4
            assert answer["choices"][0]["finish_reason"] == "length"
            server.send_signal(signal.SIGTERM)
            assert server.wait() in (0, -signal.SIGTERM)
        finally:
            guard.cancel()
            with contextlib.suppress(OSError):
                server.kill()
    for pid in below:
        wait_until_gone(pid)
    assert not children() - before  # an earlier test's may end meanwhile


def _ask(url: str, body: Any) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
        return json.loads(answer.read())


def _descendants(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with (
            contextlib.suppress(OSError),  # a thread that has ended meanwhile
            open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file,
        ):
            found += [int(word) for word in file.read().split()]
    return found
