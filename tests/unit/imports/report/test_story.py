"""One module's record in words: the headline, and the story that a failing test shows."""

from __future__ import annotations

import pytest

from pytest_cudafork import ImportRecord
from pytest_cudafork import ImportVerdict as V
from pytest_cudafork.imports.report.story import headline_of, story_lines
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.process import hang_stacks


def touch(file: str = "/src/pkg/hot.py", library: str = "ctypes") -> Touch:
    machinery = ["<frozen importlib._bootstrap>", 241, "_call_with_frames_removed", 3]
    stack = [[file, 3, "<module>", 0], machinery]
    return Touch.from_record(
        {"id": "7-1", "pid": 7, "entry": "cuInit", "library": library, "stack": stack}
    )


def record(verdict: V, **known: object) -> ImportRecord:
    if verdict.touched:
        known.setdefault("touches", (touch(),))
    return ImportRecord("pkg.hot", "pkg", verdict, **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (V.TOUCHES, "the import initializes CUDA at /src/pkg/hot.py:3: module body"),
        (V.TOUCHES_THEN_FAILS, "the import initializes CUDA at /src/pkg/hot.py:3: module body"),
        (V.TOUCHES_THEN_CRASHES, "module body, runs at import, then crashes: why"),
        (V.NOT_IMPORTABLE, "cannot be imported: why"),
        (V.NOT_OBSERVABLE, "not observable: why"),
        (V.CRASHED, "why"),
        (V.TIMED_OUT, "why"),
    ],
)
def test_the_headline_says_what_is_wrong_and_where(verdict: V, words: str) -> None:
    assert words in headline_of(record(verdict, reason="why"))


def test_a_touch_that_nobody_saw_has_no_line() -> None:
    assert headline_of(record(V.TOUCHES, touches=())) == (
        "the import initializes CUDA at a line that nobody saw"
    )
    assert headline_of(record(V.CLEAN)) == "clean"


@pytest.mark.parametrize(
    ("verdict", "title"),
    [
        (V.TOUCHES, "pkg.hot: the import initializes CUDA"),
        (V.TOUCHES_THEN_FAILS, "pkg.hot: the import initializes CUDA, then fails: why"),
        (V.TOUCHES_THEN_CRASHES, "pkg.hot: the import initializes CUDA, then crashes: why"),
        (V.CRASHED, "pkg.hot: why"),
    ],
)
def test_the_story_begins_with_the_module_and_has_the_line_below(verdict: V, title: str) -> None:
    lines = story_lines(record(verdict, reason="why"))
    assert lines[0] == title
    assert any("/src/pkg/hot.py:3" in line for line in lines[1:]) is verdict.touched


def test_hidden_libraries_another_touch_and_the_confirmation_are_named() -> None:
    touches = (touch(), touch("/lib/numba.py", "numba"))
    told = story_lines(record(V.TOUCHES, without="a+b", touches=touches, confirmed=True))
    assert told[0] == "pkg.hot, with a and b hidden: the import initializes CUDA"
    assert "another library touched after that:" in told
    assert "confirmed: a fresh interpreter that imports only this module says the same" in told
    wrong = story_lines(record(V.CLEAN, confirmed=False))
    assert wrong[-1].startswith("this is the verdict of a fresh interpreter")


def test_the_output_is_shown_without_frames_of_the_audit_and_the_import_system() -> None:
    output = "\n".join(
        [
            "hello",
            f'  File "{hang_stacks.__file__}", line 3 in ask',
            "    ours()",
            '  File "<frozen importlib._bootstrap>", line 241, in _call',
            '  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module',
            "    return _bootstrap._gcd_import(name)",
            '  File "/src/pkg/hot.py", line 3, in <module>',
            "    boom()",
            '  File "<string>", line 1 in <module>',
            "ValueError: boom",
        ]
    )
    lines = story_lines(record(V.NOT_IMPORTABLE, reason="why", output=output))
    assert lines[lines.index("what it wrote (end):") + 1 :] == [
        "  hello",
        '    File "/src/pkg/hot.py", line 3, in <module>',
        "      boom()",
        "  ValueError: boom",
    ]
