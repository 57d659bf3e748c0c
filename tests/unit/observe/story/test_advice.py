"""What the culprit line is, and what its owner is told to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.story.advice import advise, what_the_line_is
from pytest_cudafork.observe.story.touch import Touch

FUNCTION, BODY = 3, 0
SITE = "/venv/lib/python3.11/site-packages"
IMPORTLIB = ["<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", FUNCTION]


def touch_at(stack: list[list[Any]], **fields: Any) -> Touch:
    """Return a touch with this stack, innermost frame first."""
    record = {"k": "touch", "id": "1-1", "pid": 1, "t": 1, "entry": "cuInit", "stack": stack}
    return Touch.from_record({**record, **fields})


def imported(path: Path, lineno: int, name: str = "<module>", **fields: Any) -> Touch:
    """Return a touch of a body that a test file imports."""
    outer = [["/src/test_it.py", 1, "<module>", BODY], IMPORTLIB]
    return touch_at([[str(path), lineno, name, BODY], IMPORTLIB, *outer], **fields)


@pytest.mark.parametrize(
    ("source", "name", "what", "to_do"),
    [
        ("SM = probe()", "<module>", "module constant SM", "SM is evaluated at import;"),
        ("import native", "<module>", "import of native, whose", "import native inside the"),
        ("probe()", "<module>", "module body, runs", "the line runs at import; make it lazy"),
        ("def f(x=probe()):\n    ...", "<module>", "default argument of f()", "default to None"),
        ("@probe()\ndef f(): ...", "<module>", "decorator of f", "apply the decorator of f on"),
        ("@skipif(probe())\ndef f(): ...", "<module>", "decorator of f", "the condition of skipif"),
        ("pytestmark = skipif(probe())", "<module>", "module constant", "the condition of skipif"),
        ("x: probe()", "<module>", "", "quote the annotation"),
        ("class C: x = probe()", "C", "class body of C", "the class body is evaluated at import"),
        ("class C:\n    x: probe()", "C", "annotation in the class body", "quote the annotation"),
    ],
)  # fmt: skip
def test_each_kind_of_line_has_its_words(
    tmp_path: Path, source: str, name: str, what: str, to_do: str
) -> None:
    path = tmp_path / "engine.py"
    path.write_text(f"{source}\n")
    touch = imported(path, 2 if "\n    x" in source else 1, name)
    assert what in what_the_line_is(touch)
    assert advise(touch)[0].startswith(to_do)


def test_a_call_is_told_by_its_function_and_a_script_as_such() -> None:
    assert what_the_line_is(touch_at([["/src/a.py", 1, "probe", FUNCTION]])) == "in probe"
    assert what_the_line_is(touch_at([["/src/a.py", 1, "<module>", BODY]])) == "script"


def test_without_a_stack_the_start_method_is_what_is_left_to_change() -> None:
    touch = touch_at([])
    assert what_the_line_is(touch) == "no Python stack could be had"
    (only,) = advise(touch)
    assert only.startswith("start the children with a fresh interpreter")


@pytest.mark.parametrize("stack", [[], [["/src/a.py", 1, "probe", FUNCTION]]])
def test_where_no_fork_is_wrong_no_start_method_is_advised(stack: list[list[Any]]) -> None:
    (only,) = advise(touch_at(stack, test="test_a.py::test_it (call)"), forks=False)
    assert only.startswith("mark the test @pytest.mark.cuda_isolated()")
    (only,) = advise(touch_at(stack), forks=False)
    assert "mark the test" not in only
    assert "in a child" in only


def test_nor_is_it_at_import(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text("SM = probe()\n")
    told = advise(imported(path, 1), forks=False)
    assert told[0].startswith("SM is evaluated at import")
    assert not [each for each in told if "spawn" in each or "fork" in each]
    stack = [
        [f"{SITE}/lib/x.py", 1, "<module>", BODY], IMPORTLIB, ["/src/a.py", 1, "load", FUNCTION]
    ]  # fmt: skip
    assert "let load run in the child, after the fork" in advise(touch_at(stack))[0]
    assert advise(touch_at(stack), forks=False)[0].endswith("let load run in a child")


@pytest.mark.parametrize("name", ["conftest.py", "test_it.py", "it_test.py"])
def test_a_test_or_fixture_is_advised_to_be_isolated(name: str) -> None:
    touch = touch_at([[f"/src/{name}", 3, "probe", FUNCTION]])
    assert "@pytest.mark.cuda_isolated()" in advise(touch)[0]


def test_a_call_belongs_into_the_child() -> None:
    touch = touch_at([["/src/engine.py", 3, "probe", FUNCTION]])
    assert advise(touch)[0] == "call probe in the child, after the fork"


@pytest.mark.parametrize("name", ["<lambda>", "<listcomp>", "load.<locals>.<genexpr>"])
def test_what_has_no_name_is_not_told_to_be_called(name: str) -> None:
    touch = touch_at([["/src/engine.py", 3, name, FUNCTION]])
    assert advise(touch)[0] == "let the code of this line run in the child, after the fork"


def test_a_line_of_a_script_belongs_into_a_function() -> None:
    advice = advise(touch_at([["/src/run.py", 2, "<module>", BODY]]))
    assert advice[0].startswith("move the line into a function, and call that in the child")


def test_a_fork_server_is_not_advised_to_whom_it_betrays(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text("probe()\n")
    server = "/usr/lib/python3.11/multiprocessing/forkserver.py"
    body = [str(path), 1, "<module>", BODY]
    preloaded = touch_at([body, IMPORTLIB, [server, 174, "main", FUNCTION]])
    assert "fork server has imported it" in advise(preloaded)[-1]
    serve = [server, 313, "_serve_one", FUNCTION]
    in_a_child = touch_at([body, IMPORTLIB, serve, [server, 290, "main", FUNCTION]])
    assert 'or "forkserver"' in advise(in_a_child)[-1]


def test_a_question_is_told_of_nvml(tmp_path: Path) -> None:
    touch = touch_at([["/src/a.py", 1, "probe", FUNCTION]], entry="torch.cuda.is_available")
    assert "NVML" in advise(touch)[1]


def test_code_of_others_is_imported_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "engine.py"
    own.write_text("import flash\n\ndef load():\n    import flash\n")
    stack = [
        [f"{SITE}/flash/__init__.py", 1, "<module>", BODY],
        IMPORTLIB,
        [str(own), 1, "<module>", BODY],
        IMPORTLIB,
        ["/src/test_it.py", 1, "<module>", BODY],
        IMPORTLIB,
    ]
    first = advise(touch_at(stack))[0]
    assert first.startswith("the import of flash at engine.py:1 touches CUDA: move it into")
    stack[2] = [str(own), 4, "load", FUNCTION]
    assert "let load run in the child, after the fork" in advise(touch_at(stack))[0]


def test_a_package_that_the_reader_can_change_is_their_own(tmp_path: Path) -> None:
    stack = [[f"{SITE}/flash/core.py", 1, "<module>", BODY], IMPORTLIB]
    stack += [[f"{SITE}/flash/__init__.py", 2, "<module>", BODY], IMPORTLIB]
    stack += [["/src/test_it.py", 1, "<module>", BODY], IMPORTLIB]
    others, own = advise(touch_at(stack)), advise(touch_at(stack), own="flash")
    assert not any("re-exports" in sentence for sentence in others)
    assert own[0].startswith("the line runs at import")
    assert own[1].startswith("flash/__init__.py:2 re-exports a module")


def test_lines_are_named_as_in_the_story_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stack = [[f"{tmp_path}/pkg/core.py", 1, "<module>", BODY], IMPORTLIB]
    stack += [[f"{tmp_path}/pkg/__init__.py", 2, "<module>", BODY], IMPORTLIB]
    stack += [["/src/test_it.py", 1, "<module>", BODY], IMPORTLIB]
    assert advise(touch_at(stack))[1].startswith("pkg/__init__.py:2 re-exports")


def test_there_are_at_most_four_sentences_and_none_ends_with_a_full_stop() -> None:
    stack = [["/src/pkg/core.py", 1, "<module>", BODY], IMPORTLIB]
    stack += [["/src/pkg/__init__.py", 2, "<module>", BODY], IMPORTLIB]
    stack += [["/src/test_it.py", 1, "<module>", BODY], IMPORTLIB]
    sentences = advise(touch_at(stack, entry="torch.cuda.is_available"))
    assert len(sentences) == 4
    assert not any(sentence.endswith(".") for sentence in sentences)
