"""What ``git bisect run`` is told of a commit: good, bad, or not to be judged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork import ImportRecord
from pytest_cudafork import ImportVerdict as V
from pytest_cudafork.imports.audit.baseline import Baseline, Entry
from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.report.fail_on import BAD, GOOD, SKIP, Place, judge, parse_place
from pytest_cudafork.imports.report.findings import Findings
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.observe.story.touch import Touch
from pytest_cudafork.settings.import_settings import ImportSettings

FLASH = """\
class Kernel:
    fast = ask()


def build():
    class Inner:
        slow = ask()
"""
NO_PACKAGE = "ModuleNotFoundError: No module named 'cutlass.cute'"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "flash.py").write_text(FLASH)
    return tmp_path


def record(
    module: str, verdict: V, line: int = 0, *, path: str = "shop/flash.py", reason: str = ""
) -> ImportRecord:
    touches: tuple[Touch, ...] = ()
    if line:
        importing = ["<frozen importlib._bootstrap>", 1, "_find_and_load", 1]
        name, flags = {2: ("Kernel", 0), 7: ("Inner", 0)}.get(line, ("<module>", 0))
        stack = [[str(Path(path).absolute()), line, name, flags], importing]
        touches = (Touch.from_record({"id": "7-1", "pid": 7, "stack": stack}),)
    return ImportRecord(module, "shop", verdict, touches=touches, reason=reason)


def answer(
    place: str, records: Sequence[ImportRecord], *, strict: bool = False, accepted: str = ""
) -> tuple[int, str]:
    files = {"shop": "__init__.py", "shop.flash": "flash.py", "shop.other": "other.py"}
    modules = [FoundModule(name, str(Path("shop", end).absolute())) for name, end in files.items()]
    baseline = Baseline([Entry(accepted, "a:1")] if accepted else [])
    settings = ImportSettings(strict=strict)
    checked = tuple(map(CheckedRecord, [record("shop", V.CLEAN), *records]))
    return judge(Findings(checked, {"shop": modules}, settings, baseline, ""), parse_place(place))


CLEAN = record("shop.flash", V.CLEAN)
BROKEN = record("shop.other", V.NOT_IMPORTABLE, reason="ImportError: cannot import name 'x'")


@pytest.mark.parametrize(
    ("place", "line", "status"),
    [
        ("any", 2, BAD),
        ("shop/flash.py", 2, BAD),
        ("flash.py", 2, BAD),
        ("./shop/flash.py::Kernel", 2, BAD),
        ("shop/flash.py::build.Inner", 7, BAD),
        ("shop/flash.py::Inner", 7, BAD),
        ("shop/flash.py::build", 7, BAD),
        ("shop/flash.py::build.<locals>.Inner", 7, BAD),
        ("shop/flash.py::<module>", 1, BAD),
        ("shop/flash.py::<module>", 7, SKIP),
        ("shop/flash.py::Inn", 7, SKIP),
        ("shop/flash.py::Kern", 2, SKIP),
        ("shop/flash.py::build", 2, SKIP),
        ("shop/other.py", 2, GOOD),
        ("lash.py", 2, GOOD),
    ],
)
def test_a_touch_is_known_by_its_file_and_scope(
    place: str, line: int, status: int, shop: Path
) -> None:
    hot = record("shop.flash", V.TOUCHES, line)
    said, why = answer(place, [hot, record("shop.other", V.CLEAN)])
    assert said == status, why
    if status == SKIP:
        assert "hides what" in why


@pytest.mark.parametrize("verdict", [each for each in V if each.touched])
def test_a_touch_counts_whatever_becomes_of_the_import(verdict: V, shop: Path) -> None:
    assert answer("any", [record("shop.flash", verdict, 2)])[0] == BAD
    assert answer("shop/flash.py", [record("shop.flash", verdict, 2)])[0] == BAD


def test_nothing_that_touches_is_good(shop: Path) -> None:
    assert answer("any", [CLEAN]) == (GOOD, "nothing does")
    assert answer("shop/flash.py::Kernel", [CLEAN])[0] == GOOD
    assert "there is no file 'shop/nope.py'" in answer("shop/nope.py", [CLEAN])[1]


@pytest.mark.parametrize("verdict", [V.NOT_IMPORTABLE, V.NOT_OBSERVABLE, V.CRASHED, V.TIMED_OUT])
@pytest.mark.parametrize("place", ["any", "shop/flash.py", "site-packages/cutlass.py"])
def test_what_could_not_be_judged_is_never_good(place: str, verdict: V, shop: Path) -> None:
    status, why = answer(place, [record("shop.flash", verdict, reason=NO_PACKAGE[:30])])
    assert status == SKIP
    assert f"shop.flash is {verdict.value}" in why


def test_a_library_that_is_not_installed_is_so_in_every_commit(shop: Path) -> None:
    lacks = record("shop.other", V.NOT_IMPORTABLE, reason=NO_PACKAGE)
    own = record(
        "shop.other", V.NOT_IMPORTABLE, reason="ModuleNotFoundError: No module named 'shop.x'"
    )
    assert answer("any", [CLEAN, lacks])[0] == GOOD
    assert answer("any", [CLEAN, lacks], strict=True)[0] == SKIP
    assert answer("any", [CLEAN, own])[0] == SKIP
    assert answer("shop/other.py", [CLEAN, lacks])[0] == SKIP, "it is the one that is asked for"


def test_for_a_file_only_its_own_module_must_be_judged(shop: Path) -> None:
    assert answer("shop/flash.py", [CLEAN, BROKEN])[0] == GOOD
    assert answer("any", [CLEAN, BROKEN])[0] == SKIP
    package = record("shop", V.CRASHED, reason="SIGSEGV")
    status, why = answer("shop/flash.py", [CLEAN, package, BROKEN])
    assert (status, why) == (SKIP, "shop is crashed: SIGSEGV")
    assert answer("any", [package, BROKEN])[1].endswith("(and 1 more)")


def test_a_touch_without_a_line_is_no_answer_for_a_file(shop: Path) -> None:
    touch = Touch.from_record({"id": "7-1", "pid": 7, "stack": []})
    blind = ImportRecord("shop.other", "shop", V.TOUCHES, touches=(touch,))
    assert answer("shop/flash.py", [CLEAN, blind])[0] == SKIP
    assert answer("any", [CLEAN, blind])[0] == BAD


def test_what_the_baseline_accepts_is_not_looked_for(shop: Path) -> None:
    hot = record("shop.flash", V.TOUCHES, 2)
    assert answer("any", [hot], accepted="shop.flash")[0] == GOOD
    assert answer("any", [hot], accepted="shop.other")[0] == BAD


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shop/flash.py:12", "name the function or class, as in shop/flash.py::NAME"),
        ("shop/flash.py::Kernel:12", "a line moves"),
        ("shop.flash", "is no place"),
        ("", "is no place"),
        ("::Kernel", "is no place"),
        ("shop/flash.py::", "is no place"),
        ("shop/flash.py::a b", "is no place"),
        ("shop/flash.py::Kernel.", "is no place"),
        ("shop/flash.py::.Kernel", "is no place"),
        ("shop/flash.py::<module>.x", "is no place"),
        ("shop/flash.py::<locals>", "is no place"),
        ("shop/flash.py::<lambda>", "as in shop/flash.py::NAME, or shop/flash.py::<module>"),
        ("flash.py::build.<locals>.go.<locals>.<listcomp>", "as in flash.py::build.go"),
        ("flash.py::A.<lambda>.<locals>.<genexpr>", "as in flash.py::A"),
    ],
)
def test_what_is_no_place_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_place(text)


NAMES = st.from_regex(r"[A-Za-z_]\w{0,8}", fullmatch=True)


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, max_size=3))
def test_a_place_is_read_as_it_is_written(folders: list[str], scopes: list[str]) -> None:
    file, scope = f"{'/'.join(folders)}.py", ".".join(scopes)
    text = "::".join(filter(None, [file, scope]))
    assert parse_place(text) == Place(file, scope)
    assert str(parse_place(text)) == text
    assert str(parse_place("any")) == "any"
