"""``python -m sample_engine``: text, errors in one line, exit codes, Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import sample_engine.llm
from sample_engine.__main__ import main
from sample_engine.batch.outputs import RequestOutput
from sample_engine.batch.sampling_params import SamplingParams
from sample_engine.llm import LLM
from tests.engine.support.process import (
    HANG_SECONDS,
    PROJECT,
    Script,
    children,
    wait_until,
    wait_until_gone,
)


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the command a core that repeats the prompt, two tokens at a time."""
    before = children()
    made = partial(LLM, core_factory=Script(tokens_per_step=2))
    monkeypatch.setattr(sample_engine.llm, "LLM", made)
    monkeypatch.setenv("SAMPLE_ENGINE_WORKER_METHOD", "inproc")
    yield
    assert not children() - before


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(str(end.code))
    return code, *capsys.readouterr()


def test_it_writes_the_prompt_and_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "abc", "--max-tokens", "5") == (0, "abcabcab\n", "")


def test_the_prompt_is_read_from_stdin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("dé\n".encode())))
    assert run(capsys, "-", "--max-tokens", "4")[:2] == (0, "dé\ndé\n\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\xff")))
    code, out, err = run(capsys, "-")
    assert (code, out) == (2, "")
    assert err == (
        "sample_engine: error: The prompt on stdin is not UTF-8 at byte 3: convert it, for "
        "instance with iconv.\n"
    )


@pytest.mark.parametrize(
    ("stream", "arguments", "expected"),
    [
        ("stdin", ["abc"], (0, "abcabcab\n", "")),
        ("stdin", ["-"], (2, "", "The prompt is to be read from stdin, which is closed.")),
        ("stdout", ["abc"], (2, "", "stdout is closed: there is nowhere to write the text to.")),
        ("stderr", ["abc"], (0, "abcabcab\n", "")),
        ("stderr", ["abc", "--dtype=wrong"], (2, "", "")),
    ],
)
def test_a_stream_that_is_closed_is_told_where_it_is_missed(
    stream: str,
    arguments: list[str],
    expected: tuple[int, str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, stream, None)  # as Python has it where the descriptor is closed
    code = main([*arguments, "--max-tokens", "5"])
    if stream == "stderr":
        sys.stderr.close()  # what stood in for it
    out, err = capsys.readouterr()
    if expected[2]:
        expected = (*expected[:2], f"sample_engine: error: {expected[2]}\n")
    assert (code, out, err) == expected


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_stdout_does_not_have_are_escaped(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bytes that are no UTF-8 come as U+FFFD, from a model that says nothing but ASCII, too.
    written = io.BytesIO()
    with monkeypatch.context() as patch, io.TextIOWrapper(written, encoding) as stdout:
        patch.setattr(sys, "stdout", stdout)
        code = main(["\xe9\ufffd", "--max-tokens", "5"])
        shown = written.getvalue()
    escaped = ("\xe9\ufffd" * 2).encode(encoding, "backslashreplace")
    assert (code, shown) == (0, escaped + b"\n")


def test_stop_strings_end_it_and_know_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "a\nb", "--stop", r"ba\n", "--stop", "zz") == (0, "a\nba\n\n", "")
    assert run(capsys, r"a\nb", "--stop", r"\\nb") == (0, r"a\nba" + "\n", "")


def test_metrics_are_shown_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "abc", "--max-tokens", "4", "--metrics")
    assert (code, out) == (0, "abcabca\n")
    assert re.match(r"4 tokens in \d+\.\d\d s, [\d.]+ tokens/s\n", err)
    assert "\nworker_method: inproc\n" in err
    assert "\nsteps: 2\n" in err


def test_the_options_reach_the_engine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    class Spy(LLM):
        def __init__(self, model: str, **settings: Any) -> None:
            seen.append({"model": model, **settings})
            super().__init__(model, core_factory=Script(), **settings)

        def generate_stream(
            self, prompts: Any, sampling_params: Any = None
        ) -> Iterator[RequestOutput]:
            seen.append(sampling_params)
            return super().generate_stream(prompts, sampling_params)

    monkeypatch.setattr(sample_engine.llm, "LLM", Spy)
    sampling = "--max-tokens=3 --temperature=0.5 --top-k=7 --top-p=0.9 --seed=11 --stop=x"
    engine = "--model=mine --device=cpu --dtype=float32 --load-format=dummy --worker-method=inproc"
    speculative = '{"method": "ngram", "num_speculative_tokens": 2}'
    more = ["--attention-backend=reference", f"--speculative-config={speculative}"]
    more.append('--kv-transfer-config={"kv_role": "kv_both"}')
    assert run(capsys, "a", *sampling.split(), *engine.split(), *more)[0] == 0
    assert seen == [
        {
            "model": "mine",
            "device": "cpu",
            "dtype": "float32",
            "load_format": "dummy",
            "worker_method": "inproc",
            "attention_backend": "reference",
            "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
            "kv_transfer_config": {"kv_role": "kv_both"},
        },
        SamplingParams(max_tokens=3, temperature=0.5, top_k=7, top_p=0.9, seed=11, stop=("x",)),
    ]


WRONG = {
    "nothing": ([], 2, "the following arguments are required: prompt; see --help"),
    "unknown option": (["a", "--wat"], 2, "unrecognized arguments: --wat; see --help"),
    "number": (["a", "--top-k", "x"], 2, "argument --top-k: invalid int value: 'x'; see --help"),
    "temperature": (
        ["a", "--temperature", "-1"],
        2,
        "temperature=-1.0 must be a number of 0 or more.",
    ),
    "deep JSON": (["a", "--speculative-config", '{"a":' * 20000], 2, "is not JSON (too deep)"),
    "method": (["a", "--worker-method", "thread"], 2, "worker_method='thread' is not one of"),
    "JSON": (["a", "--speculative-config", "{"], 2, "'{' is not JSON (Expecting property name"),
    "no object": (["a", "--speculative-config", "[]"], 2, "'[]' is not a JSON object"),
    "speculator": (
        ["a", '--speculative-config={"method": "eagel", "num_speculative_tokens": 3}'],
        2,
        "method='eagel' is not one of 'eagle', 'ngram'. Did you mean 'eagle'?",
    ),
    "KV connector": (
        ["a", '--kv-transfer-config={"kv_connector": "LMCacheConnectorV1"}'],
        2,
        "kv_connector='LMCacheConnectorV1' is not one of 'SharedMemoryConnector'",
    ),
    "empty prompt": ([""], 2, "Request '0' has an empty prompt."),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line_and_exit_code_2(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected, words = WRONG[name]
    code, out, err = run(capsys, *arguments)
    assert code == expected
    assert out == ""
    assert err.startswith("sample_engine: error: ")
    assert err.count("\n") == 1
    assert words in err


def test_each_wrong_setting_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    settings = '{"method": "egle", "prompt_lookup_max": 0}'
    code, out, err = run(capsys, "a", "--speculative-config", settings)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert [line.startswith("sample_engine: error: speculative_config") for line in lines] == [
        True
    ] * 3
    assert [word in err for word in ("num_speculative_tokens", "egle", "lookup_max=0")] == [
        True
    ] * 3


def test_an_engine_that_fails_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = partial(LLM, core_factory=Script(at_start="error"))
    monkeypatch.setattr(sample_engine.llm, "LLM", made)
    arguments = ["a", "--worker-method", "fork", "--device", "cpu"]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (1, "")
    words = "failed while starting: ZeroDivisionError: nothing is left to divide by"
    assert f"{words} (SAMPLE_ENGINE_TRACEBACK=1 shows more)\n" in err
    assert err.count("\n") == 1
    monkeypatch.setenv("SAMPLE_ENGINE_TRACEBACK", "1")
    assert "in _error" in run(capsys, *arguments)[2]


def test_an_error_without_a_process_is_one_line_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = partial(LLM, core_factory=Script(at_step="error"))
    monkeypatch.setattr(sample_engine.llm, "LLM", made)
    code, out, err = run(capsys, "abc")
    assert (code, out) == (1, "abcab\n")
    words = "ZeroDivisionError: nothing is left to divide by"
    assert err == f"sample_engine: error: {words} (SAMPLE_ENGINE_TRACEBACK=1 shows more)\n"
    monkeypatch.setenv("SAMPLE_ENGINE_TRACEBACK", "1")
    assert "in _error" in run(capsys, "abc")[2]


COMMAND = """
import sys
from functools import partial
from pathlib import Path
import sample_engine.llm
from sample_engine.__main__ import main
from sample_engine.llm import LLM
from sample_engine.batch.outputs import RequestOutput
from sample_engine.batch.sampling_params import SamplingParams
from tests.engine.support.process import Script
script = Script(at_start=sys.argv.pop(1), step_seconds=0.02)
sample_engine.llm.LLM = partial(sample_engine.llm.LLM, core_factory=script)
Path(sys.argv.pop(1)).touch()
sys.exit(main())
"""


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """What is there once the command has imported all: what that starts has ended by then."""
    return tmp_path / "imported"


@contextlib.contextmanager
def command(at_start: str, imported: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command in a process group of its own, with a core that does not end by itself."""
    words = [at_start, str(imported), "abc", "--max-tokens=1000000", *arguments]
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=PROJECT,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:  # the test has failed
                os.killpg(process.pid, signal.SIGKILL)


def child_of(pid: int) -> int:
    """The last child process that a process has, which gets one at least."""
    found: list[str] = []

    def look() -> bool:
        found[:] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return bool(found)

    wait_until(look, f"process {pid} has started another")
    return int(found[-1])


@pytest.mark.parametrize("method", ["inproc", "fork", "spawn"])
def test_ctrl_c_ends_it_quietly_and_its_core_too(method: str, imported: Path) -> None:
    with command("", imported, f"--worker-method={method}") as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"abcabc"
        core = child_of(process.pid) if method != "inproc" else None
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        out, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert err == b""
    assert out.endswith(b"\n")
    if core is not None:
        wait_until_gone(core)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2])
def test_ctrl_c_while_the_core_starts_is_quiet_too(
    method: str, delay: float, imported: Path
) -> None:
    with command("sleep", imported, f"--worker-method={method}") as process:
        wait_until(imported.exists, "the command has imported all")
        core = child_of(process.pid)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 130
    assert err == b""
    wait_until_gone(core)


def test_a_reader_that_has_seen_enough_ends_it_without_a_word(imported: Path) -> None:
    with command("", imported, "--worker-method=fork") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(5) == b"abcab"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(HANG_SECONDS) == 0


def test_the_real_engine_completes_a_text() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [
            *[sys.executable, "-m", "sample_engine", "def f(", "--load-format=dummy"],
            *["--device=cpu", "--max-tokens=5", "--worker-method=spawn", "--metrics"],
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"def f(")
    assert b"\nworker_method: spawn\n" in done.stderr
