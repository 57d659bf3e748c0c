"""Where an exception ended: which statement caught it, and whether that names its class."""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.check.caught import Caught, caught_at, may_look
from pytest_cudafork.errors import CudaForkError


class Own(CudaForkError):
    """A subclass of a user's own."""


class Manager:
    """A context manager that catches everything, and holds what it was given."""

    def __init__(self, held: object = None) -> None:
        self.held = held

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *about: object) -> bool:
        return True


KEPT: list[BaseException] = []
BOTH = (OSError, CudaForkError)
HOLDING, HOLDING_BASE = Manager(BOTH), Manager([RuntimeError])
NAMES = {
    "CudaForkError": CudaForkError,
    "Own": Own,
    "BOTH": BOTH,
    "HOLDING": HOLDING,
    "KEPT": KEPT,
    "HOLDING_BASE": HOLDING_BASE,
    "Manager": Manager,
    "contextlib": contextlib,
    "errors": sys.modules["pytest_cudafork.errors"],
    "pytest": pytest,
}

# What stands around the line that raises; the line that caught it, and whether that names it.
BODIES = {
    "try:\n    fail()\nexcept CudaForkError:\n    pass": (3, True),
    "try:\n    fail()\nexcept Own:\n    pass\nexcept Exception:\n    pass": (3, True),
    "try:\n    fail()\nexcept OSError:\n    pass\nexcept RuntimeError:\n    pass": (5, False),
    "try:\n    fail()\nexcept (KeyError, errors.CudaForkError):\n    pass": (3, True),
    "try:\n    fail()\nexcept BOTH:\n    pass": (3, True),
    "try:\n    fail()\nexcept:\n    pass": (3, False),
    "try:\n    fail()\nexcept CudaForkError if True else OSError:\n    pass": (0, False),
    "try:\n    pass\nexcept CudaForkError:\n    pass\nelse:\n    fail()": (0, False),
    "try:\n    1 / 0\nexcept ZeroDivisionError:\n    fail()": (0, False),
    "try:\n"
    "    1 / 0\n"
    "except ZeroDivisionError:\n"
    "    try:\n"
    "        fail()\n"
    "    except BOTH:\n"
    "        pass": (6, True),
    "try:\n"
    "    try:\n"
    "        fail()\n"
    "    except CudaForkError:\n"
    "        raise\n"
    "except Exception:\n"
    "    pass": (6, False),
    "try:\n"
    "    try:\n"
    "        fail()\n"
    "    except Exception as e:\n"
    "        raise e\n"
    "except CudaForkError:\n"
    "    pass": (6, True),
    "try:\n    fail()\nexcept CudaForkError:\n    if not True:\n        raise": (3, True),
    "with contextlib.suppress(CudaForkError):\n    fail()": (1, True),
    "with contextlib.suppress(OSError, Exception):\n    fail()": (1, False),
    "with pytest.raises(match='why', expected_exception=BOTH):\n    fail()": (1, True),
    "with pytest.raises(*BOTH[1:]):\n    fail()": (1, False),
    "with HOLDING:\n    fail()": (1, True),
    "with HOLDING_BASE:\n    fail()": (1, False),
    "with Manager():\n    fail()": (1, False),
    "with (own := Manager(CudaForkError)):\n    fail()": (1, True),
    "with contextlib.suppress(CudaForkError), contextlib.nullcontext(fail()):\n    pass": (1, True),
    "with contextlib.suppress(CudaForkError):\n"
    "    with contextlib.nullcontext():\n"
    "        fail()": (1, True),
    "try:\n"
    "    with contextlib.suppress(Exception):\n"
    "        fail()\n"
    "except CudaForkError:\n"
    "    pass": (2, False),
    "try:\n    with contextlib.nullcontext():\n        fail()\nexcept CudaForkError:\n    pass": (
        4,
        True,
    ),
    "with contextlib.suppress(CudaForkError) if fail else contextlib.nullcontext():\n    fail()": (
        1,
        True,
    ),
    "with contextlib.suppress(Exception) if fail else HOLDING_BASE:\n    fail()": (1, False),
    "with contextlib.ExitStack() as stack:\n"
    "    stack.enter_context(contextlib.suppress(CudaForkError))\n"
    "    fail()": (1, True),
    "with contextlib.ExitStack() as stack:\n"
    "    if fail:\n"
    "        stack.push(HOLDING if fail else HOLDING_BASE)\n"
    "    fail()": (1, True),
    "with contextlib.ExitStack() as stack:\n"
    "    stack.enter_context(contextlib.suppress(Exception))\n"
    "    KEPT.append(CudaForkError('not put on it'))\n"
    "    fail()": (1, False),
    "for _ in [1]:\n    try:\n        fail()\n    finally:\n        break": (0, False),
    "match 1:\n"
    "    case 1:\n"
    "        try:\n"
    "            fail()\n"
    "        except Own:\n"
    "            pass": (5, True),
    "own = CudaForkError\ntry:\n    fail()\nexcept own:\n    pass": (4, True),
}


def fail() -> None:
    """Raise, and keep what is raised."""
    KEPT.append(Own("why"))
    raise KEPT[-1]


def ended(source: str, path: Path) -> Caught:
    """Run code that ends an error, and return where it did."""
    path.write_text(source)
    KEPT.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a break in finally, from Python 3.14 on
        code = compile(source, str(path), "exec")
    with contextlib.suppress(CudaForkError):
        exec(code, {**NAMES, "fail": fail})
    traceback: Any = KEPT[-1].__traceback__
    while traceback.tb_frame.f_code.co_filename != str(path):
        traceback = traceback.tb_next  # less what has caught those that the code let through
    return caught_at(traceback, CudaForkError)


@pytest.mark.parametrize("kind", ["function", "module", "method of a class in a function"])
@pytest.mark.parametrize("body", BODIES)
def test_the_statement_that_ended_it_is_found(body: str, kind: str, tmp_path: Path) -> None:
    indent = {"function": 1, "module": 0, "method of a class in a function": 3}[kind]
    head = ["", "def caller():\n", "", "def caller():\n class Inner:\n  def method(self):\n"][
        indent
    ]
    tail = ["", "\ncaller()\n", "", "\n return Inner\ncaller()().method()\n"][indent]
    text = "".join(f"{' ' * indent}{line}\n" for line in body.splitlines())
    found = ended(head + text + tail, tmp_path / "code.py")
    line, by_name = BODIES[body]
    assert (found.line - (head.count("\n") if line else 0), found.by_name) == (line, by_name)
    assert found.filename == str(tmp_path / "code.py")
    assert bool(found.source) == bool(line)


@pytest.mark.parametrize(
    "code",
    [
        "(lambda: fail())()",
        "def caller(): return (lambda: fail())()\ncaller()",
    ],
)
def test_a_frame_that_catches_nothing_has_no_statement(code: str, tmp_path: Path) -> None:
    assert ended(code, tmp_path / "code.py")[1:] == (0, "<module>", False) or "caller" in code


def test_a_finalizer_within_a_parse_must_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    monkeypatch.setattr("builtins.compile", lambda *args, **kwargs: seen.append(may_look()))
    ast.parse("1")
    monkeypatch.undo()
    assert seen == [False]
    assert may_look()


def test_a_parse_of_another_thread_is_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()

    def parse_slowly(*args: Any, **kwargs: Any) -> None:
        begun.set()
        over.wait(200)

    with monkeypatch.context() as patch:
        patch.setattr(ast, "compile", parse_slowly, raising=False)
        thread = threading.Thread(target=ast.parse, args=["1"])
        thread.start()
        begun.wait(200)
        assert not may_look()
        over.set()
        thread.join()
    assert may_look()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="except* is new in Python 3.11")
def test_a_group_that_names_it_is_known(tmp_path: Path) -> None:
    body = "try:\n    fail()\nexcept* CudaForkError:\n    pass\n"
    assert ended(body, tmp_path / "code.py").by_name


def test_code_without_source_catches_without_a_name(tmp_path: Path) -> None:
    KEPT.clear()
    body = "try:\n    fail()\nexcept CudaForkError:\n    pass\n"
    exec(compile(body, str(tmp_path / "never_written.py"), "exec"), {**NAMES, "fail": fail})
    traceback = KEPT[-1].__traceback__
    assert traceback is not None
    assert caught_at(traceback, CudaForkError)[1:] == (0, "<module>", False)


def test_names_are_looked_up_without_running_code(tmp_path: Path) -> None:
    class Odd:
        @property
        def errors(self) -> object:
            raise AssertionError("it was run")

    KEPT.clear()
    body = "try:\n    fail()\nexcept (odd.errors if False else Exception):\n    pass\n"
    body += "try:\n    fail()\nexcept (missing if False else Exception):\n    pass\n"
    path = tmp_path / "code.py"
    path.write_text(body)
    exec(compile(body, str(path), "exec"), {**NAMES, "fail": fail, "odd": Odd()})
    for error in KEPT:
        assert error.__traceback__ is not None
        assert not caught_at(error.__traceback__, CudaForkError).by_name
