"""A file that is run as a program: its exit status, its surroundings, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_cudafork.compat import standard_library
from pytest_cudafork.file_worker.child import run_file
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol import messages

ENDINGS = {
    "pass": 0,
    "import sys; sys.exit()": 0,
    "import sys; sys.exit(0)": 0,
    "import sys; sys.exit(3)": 3,
    "import sys; sys.exit(True)": 1,
    "import sys; sys.exit('bad news')": 1,
    "import sys; sys.exit(-1)": 255,
    "import sys; sys.exit(['a'])": 1,
    "1 / 0": 1,
    "def broken(": 1,
    "raise KeyboardInterrupt": 130,
    "import no_such_library": 1,
    "import sys; sys.excepthook = lambda *a: 1 / 0; raise KeyError(3)": 1,
    "import sys; sys.excepthook = lambda *a: sys.exit(7); raise KeyError(3)": 7,
    "import sys; sys.excepthook = None; raise KeyError(3)": 1,
    "import sys; del sys.excepthook; raise KeyError(3)": 1,
    "import sys; sys.stderr = None; sys.exit('bad news')": 1,
    "import sys; sys.stderr = None; raise KeyError(3)": 1,
    "import sys; sys.exit(type('Silent', (), {'__str__': None})())": 1,
    "import sys; sys.stdout = None": 0,
    "import sys; sys.stdout = object()": 120,
}


@pytest.fixture(autouse=True)
def same_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a program change what is the process's."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(standard_library, "wait_for_threads", lambda: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # a library may have set its own
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("beside"):
            del sys.modules[name]


@pytest.mark.parametrize("text", ENDINGS)
def test_the_exit_status_is_that_of_python(folder: Path, text: str) -> None:
    file = folder / "program.py"
    file.write_text(text)
    status = run_file.run_program(str(file), ["-f"])
    assert status == ENDINGS[text]
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(file), "-f"], check=False, capture_output=True
    )
    assert done.returncode % 256 == status or (done.returncode, status) == (-2, 130)


def test_a_number_that_does_not_fit_is_no_success() -> None:
    assert [run_file.exit_status(code) for code in (0, 255, 256, 512, -256)] == [
        0,
        255,
        255,
        255,
        255,
    ]


def test_a_file_that_is_not_there_is_said_so(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_file.run_program(str(folder / "none.py"), []) == 2
    assert "can't open file" in capsys.readouterr().err


def test_it_finds_around_it_what_a_program_finds(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "beside_it.py").write_text("VALUE = 42")
    (folder / "program.py").write_text(
        "import beside_it, sys\n"
        "assert sys.modules['__main__'].__dict__ is globals()\n"
        "print(__name__, __file__, __spec__, sys.argv, sys.path[0], beside_it.VALUE)\n"
    )
    name = os.path.relpath(folder / "program.py")
    assert run_file.run_program(name, ["-f", "-v"]) == 0
    words = f"__main__ {folder}/program.py None {[name, '-f', '-v']} {folder} 42\n"
    assert capsys.readouterr().out == words
    assert vars(sys.modules["__main__"])["__file__"] == f"{folder}/program.py"


def test_a_traceback_begins_in_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "program.py").write_text("def f():\n    raise ValueError(3)\nf()\n")
    assert run_file.run_program(str(folder / "program.py"), []) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert "run_file.py" not in shown
    assert shown.count("program.py") == 2


def test_what_its_hook_raises_is_shown_beside_what_it_was_to_show(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "program.py").write_text(
        "import sys\n"
        "def hook(*given):\n"
        "    raise ValueError('of the hook')\n"
        "sys.excepthook = hook\n"
        "raise KeyError('of the file')\n"
    )
    assert run_file.run_program(str(folder / "program.py"), []) == 1
    first, second = capsys.readouterr().err.split("Original exception was:\n")
    assert first.startswith("Error in sys.excepthook:\nTraceback")
    assert "ValueError: of the hook" in first
    assert "of the file" not in first
    assert "KeyError: 'of the file'" in second
    assert "run_file.py" not in first + second


def test_a_failure_of_its_last_threads_is_one_of_the_program(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise RuntimeError("a pool that cannot end")

    monkeypatch.setattr(standard_library, "wait_for_threads", broken)
    (folder / "program.py").write_text("")
    assert run_file.run_program(str(folder / "program.py"), []) == 1
    assert "a pool that cannot end" in capsys.readouterr().err


def test_modules_that_it_could_not_import_are_named(folder: Path) -> None:
    (folder / "json.py").write_text("")
    (folder / "pytest").mkdir()
    (folder / "pytest" / "__init__.py").write_text("")
    (folder / "sys.py").write_text("")
    (folder / "subprocess").mkdir()
    (folder / "beside_it.py").write_text("")
    (folder / "os.txt").write_text("")
    assert run_file.hidden_modules(str(folder)) == {
        "json": json.__file__,
        "pytest": pytest.__file__,
        "sys": "built in",
    }
    assert run_file.hidden_modules(str(folder / "none")) == {}
    assert run_file.hidden_modules(os.path.dirname(pytest.__file__)) == {}


def test_modules_are_forgotten_unless_every_interpreter_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ("os", "pytest_cudafork", "json", "json.decoder", "time", "jsonschema")
    modules = {name: sys.modules.get(name, sys) for name in names}
    with monkeypatch.context() as patch:
        patch.setattr(sys, "modules", modules)
        run_file.forget_modules(["json", "os", "time"])
    assert list(modules) == ["os", "pytest_cudafork", "time", "jsonschema"]


class Channel:
    """The child's end, with nobody at the other."""

    is_mine = True

    def __init__(self) -> None:
        self.sent: list[messages.Message] = []

    def send(self, message: messages.Message) -> None:
        """Take note of it."""
        self.sent.append(message)


def run(folder: Path, channel: Any, prepared: Any = None) -> int:
    data = {"filename": str(folder / "program.py"), "arguments": []}
    return run_file.run(child.Task(data, -1, channel, prepared=prepared))


def test_the_job_says_whether_the_file_came_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "adopt_streams", lambda: None)
    (folder / "program.py").write_text("import sys; sys.exit(4)")
    channel = Channel()
    assert run(folder, channel) == 4
    assert channel.sent == [messages.Exited(4, "")]
    (folder / "json.py").write_text("")
    channel = Channel()
    assert run(folder, channel, prepared=object()) == 0
    (message,) = channel.sent
    assert isinstance(message, messages.NotLoaded)
    assert message.text.startswith("json (")
    forgotten: list[str] = []
    monkeypatch.setattr(run_file, "forget_modules", forgotten.extend)
    assert run(folder, Channel()) == 4, "a fresh interpreter runs it whatever lies beside it"
    assert forgotten == ["json"]


def test_a_fork_of_the_program_ends_as_a_program_would(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[int] = []

    class LeftError(Exception):
        pass

    def leave(status: int) -> None:
        left.append(status)
        raise LeftError

    monkeypatch.setattr(child, "adopt_streams", lambda: None)
    monkeypatch.setattr(child, "leave", leave)
    (folder / "program.py").write_text("import sys; sys.exit(4)")
    channel = Channel()
    channel.is_mine = False
    with pytest.raises(LeftError):
        run(folder, cast("Any", channel))
    assert (left, channel.sent) == ([4], [])
