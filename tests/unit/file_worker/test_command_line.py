"""The file worker's arguments, its loop, and what it says when it cannot begin."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.errors import ChildError
from pytest_cudafork.file_worker import command_line
from pytest_cudafork.file_worker.child import template
from pytest_cudafork.file_worker.command_line import main, refusal
from pytest_cudafork.file_worker.commands import Answer
from pytest_cudafork.process.protocol.server_messages import CannotFork
from tests.support.signs import wait_until


class Runner:
    """Runs nothing; notes what it is asked."""

    why_not: CannotFork | None = None
    error: Exception | None = None
    made: list[Runner] = []  # noqa: RUF012  # each test has a list of its own

    def __init__(self, preload: Any, **settings: Any) -> None:
        self.settings = {"preload": tuple(preload), **settings}
        self.asked: list[Any] = []
        self.closed = 0
        self.is_running = False
        self.looked = threading.Event()
        Runner.made.append(self)

    def start(self) -> CannotFork | None:
        """Be ready, or not."""
        return self.why_not

    def run(self, filename: str, timeout: float | None) -> Answer:
        """Take note of a file."""
        if self.error is not None:
            raise self.error
        self.asked.append((filename, timeout))
        return Answer(filename, 1, 0.5, "it was killed" if "bad" in filename else "")

    def interrupt(self) -> None:
        """Take note of it."""
        self.asked.append("interrupt")

    def close(self) -> None:
        """Take note of it."""
        self.closed += 1


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> type[Runner]:
    monkeypatch.setattr(Runner, "made", [])
    monkeypatch.setattr(Runner, "why_not", None)
    monkeypatch.setattr(Runner, "error", None)
    monkeypatch.setattr(command_line, "FileRunner", Runner)
    return Runner


class Ends:
    """The two ends of the pipe for answers."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()

    def answers(self) -> list[dict[str, Any]]:
        """Return what was answered; the writing end is closed."""
        os.close(self.write)
        with os.fdopen(self.read) as file:
            return [json.loads(line) for line in file]


@pytest.fixture
def ends() -> Ends:
    return Ends()


def ask(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    source = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=source))


def test_each_line_is_answered_and_nonsense_is_told(
    runner: type[Runner],
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(
        monkeypatch,
        '{"filename": "a.py"}',
        "",
        "nonsense",
        '{"filename": "bad.py", "timeout": 3}',
        '{"command": "stop"}',
        '{"filename": "never.py"}',
    )
    monkeypatch.setattr(command_line, "_end_when_nobody_listens", lambda runner, fd: None)
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert main(["--preload=torch,json", f"--result-fd={ends.write}", "--timeout=9"]) == 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    (made,) = runner.made
    assert made.settings == {
        "preload": ("torch", "json"),
        "arguments": ["-f"],
        "renew_after": 20,
        "timeout": 9.0,
    }
    assert (made.asked, made.closed) == ([("a.py", None), ("bad.py", 3.0)], 1)
    first, empty, second, third = ends.answers()
    assert first == {"filename": "a.py", "returncode": 1, "elapsed": 0.5}
    assert (empty["returncode"], second["returncode"]) == (2, 2)
    assert empty["why"].startswith("an empty line asks for nothing")
    assert third["why"] == "it was killed"
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("pytest-cudafork fileworker: an empty line asks for nothing")
    assert told[1].startswith("pytest-cudafork fileworker: 'nonsense' is no JSON")
    assert told[2] == "pytest-cudafork fileworker: bad.py: it was killed"


def test_without_a_thread_it_ends_with_the_reason(
    runner: type[Runner],
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So it is at the limit of processes, which counts threads, too."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ask(monkeypatch, '{"filename": "a.py"}')
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert main([f"--result-fd={ends.write}"]) == 1
    assert (runner.made[0].asked, runner.made[0].closed) == ([], 1)
    assert "it ends, for can't start new thread" in capsys.readouterr().err
    assert ends.answers() == []


def test_the_end_of_input_is_an_end(
    runner: type[Runner], ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(monkeypatch)
    monkeypatch.setattr(command_line, "_end_when_nobody_listens", lambda runner, fd: None)
    assert main([f"--result-fd={ends.write}", "--file-args=", "--renew-after=0"]) == 0
    assert runner.made[0].settings["arguments"] == []
    assert ends.answers() == []


def test_a_template_that_cannot_be_forked_runs_no_file(
    runner: type[Runner],
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(monkeypatch, '{"filename": "a.py"}')
    monkeypatch.setattr(runner, "why_not", CannotFork("pkg.a", template.CUDA, "CUDA is dear"))
    assert main([f"--result-fd={ends.write}"]) == 2
    assert runner.made[0].asked == []
    assert runner.made[0].closed == 1
    assert "no file was run: after `import pkg.a`, CUDA is dear" in capsys.readouterr().err


def test_that_there_is_no_process_is_told(
    runner: type[Runner],
    ends: Ends,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask(monkeypatch, '{"filename": "a.py"}')
    monkeypatch.setattr(command_line, "_end_when_nobody_listens", lambda runner, fd: None)
    monkeypatch.setattr(runner, "error", ChildError("no process is left"))
    assert main([f"--result-fd={ends.write}"]) == 1
    assert "it ends, for no process is left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("why_not", "words"),
    [
        (CannotFork("pkg.a", template.IMPORT, "Traceback"), "pkg.a cannot be imported:\nTraceback"),
        (
            CannotFork("pkg.a", template.CUDA, "CUDA is initialized"),
            "could use CUDA. What to do: `python -m pytest_cudafork imports pkg --preload` names",
        ),
        (
            CannotFork("pkg.a", template.THREADS, "threads run: exporter"),
            "threads run: exporter. From then on a file that is forked from there lacks them",
        ),
        (CannotFork("", template.CUDA, "CUDA is initialized"), "sitecustomize, or a .pth file"),
        (
            CannotFork("", "start", "the fork server exited with status 3", output="oh"),
            "the fork server exited with status 3; it wrote:\noh",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, CannotFork) else "",
)
def test_a_refusal_says_what_to_do(why_not: CannotFork, words: str) -> None:
    assert words in refusal(why_not)


@pytest.mark.parametrize(
    ("why_not", "words"),
    [
        (CannotFork("b", template.IMPORT, "E: no"), "--preload: b cannot be imported anew ("),
        (CannotFork("b", template.CUDA, "CUDA is x"), "no more files are run: when the modules"),
        (CannotFork("", "start", "the fork server died"), "when it was to be started anew ("),
    ],
    ids=lambda value: value.kind if isinstance(value, CannotFork) else "",
)
def test_files_that_were_run_before_are_not_denied(why_not: CannotFork, words: str) -> None:
    said = refusal(why_not, renewed=True)
    assert words in said
    assert "no file was run" not in said


@pytest.fixture
def devnull() -> Iterator[dict[str, int]]:
    fds = {
        name: os.open(os.devnull, mode)
        for name, mode in (("readable", os.O_RDONLY), ("writable", os.O_WRONLY))
    }
    yield fds
    for fd in fds.values():
        os.close(fd)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "the following arguments are required: --result-fd"),
        (["--result-fd=x"], "'x' is not a descriptor: give its number"),
        (["--result-fd=987"], "descriptor 987 is not open here"),
        (["--result-fd=99999999999999999999"], "is not open here"),
        (["--result-fd={readable}"], "can only be read"),
        (["--result-fd=0"], "descriptor 0 is standard input, from which commands are read"),
        (["--result-fd=1"], "descriptor 1 is standard output, where files write: answers need a"),
        (["--result-fd=02"], "descriptor 2 is standard error, where files write"),
        (["--result-fd={writable}", "--renew-after=-1"], "'-1' is not a number of files"),
        (["--result-fd={writable}", "--timeout=0"], "'0' is not a number of seconds above 0"),
        (["--result-fd={writable}", "--file-args='"], "is no command line: No closing quotation"),
        (["--result-fd={writable}", "--preload=a b"], "'a b' is not a module name"),
        (["--result-fd={writable}", "a.py"], "unrecognized arguments: a.py"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_are_told(
    args: list[str], words: str, devnull: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([arg.format(**devnull) for arg in args])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_signals_go_to_the_file_or_end_all(runner: type[Runner]) -> None:
    made: Any = Runner(())
    with command_line._signals(made):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert made.asked == ["interrupt"]
    assert ended.value.code == 143


def test_a_reader_that_is_gone_ends_it_while_a_file_runs(
    runner: type[Runner], ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = Runner(())
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(time, "sleep", lambda seconds: made.looked.set())
    command_line._end_when_nobody_listens(made, ends.write)
    os.close(ends.read)
    assert made.looked.wait(300)
    assert sent == [], "no file runs"
    monkeypatch.undo()
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    made.is_running = True
    wait_until(lambda: sent)
    os.close(ends.write)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_the_page_has_every_option_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    page = Path(__file__).parents[3] / "docs" / "how-to" / "test-files-in-forks.md"
    rows = set(re.findall(r"^\| `(--[a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert flags == rows
