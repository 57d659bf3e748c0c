"""The demo: it runs, it names what it should, and its verdict can be a bad one."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo import cases, outcome, page
from demo.cases import INSTALLED, REBUILT, Case, Expect, Library
from demo.outcome import Result, judge, summary, verdict_of
from demo.session import Place, Seen, read, run
from tests.specimens.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT = 300
"""Seconds for the whole demo, which takes about 30 on two idle cores."""

_NEEDS = ("torch", "triton", "cutlass", "tvm_ffi")
_PLACE = Place("engine/core.py:7", "cuInit(0)", "module body, runs at import", "cuInit")
_NAMED = Case(REBUILT, "a bug", "", "fork", "phantom", Expect.NAMED, r"^engine/core\.py:7$")
_REFUSED = Seen(status=1, places=(_PLACE,), touches=1, refused=1)
_PASSES = Seen(status=0, touches=1)
_CLEAN = Seen(status=0)


def _expecting(expect: Expect) -> Case:
    return replace(_NAMED, section=INSTALLED, expect=expect)


def _result(case: Case, seen: Seen) -> Result:
    return Result(case, seen, judge(case, seen))


# -- the whole demo ------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_whole_demo_comes_out_as_expected() -> None:
    """One test, so that xdist runs the demo once; ``-k "not whole_demo"`` leaves it out."""
    for module in _NEEDS:
        pytest.importorskip(module, reason=f"the demo shows {module}, which is not installed")
    done = subprocess.run(
        [sys.executable, "demo/run.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    _assert_verdict(done.stdout)
    _assert_culprits(done.stdout)
    _assert_plain(done.stdout)


def _assert_verdict(shown: str) -> None:
    last = shown.splitlines()[-1]
    assert last.startswith("as expected: 6/6 bugs, 5/5 repairs, "), last
    assert "2/2 clean imports" in last


def _assert_culprits(shown: str) -> None:
    bugs = [specimen for specimen in CATALOG if specimen.name in cases.BUGS]
    assert len(bugs) == len(cases.BUGS)
    for specimen in bugs:
        block = shown.partition(f"{specimen.name}, buggy ")[2].partition(", fixed")[0]
        assert specimen.culprit_line in block.split(), specimen.name
    assert re.search(r"^    tvm_ffi/_optional_torch_c_dlpack\.py:\d+$", shown, re.MULTILINE)
    assert re.search(r"^    \S*cutlass/\S+\.py:\d+$", shown, re.MULTILINE)
    assert re.search(r"test_three_lines\.py:\d+: module constant HAVE_GPU", shown)


def _assert_plain(shown: str) -> None:
    assert shown.isascii()
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= page.WIDTH


# -- one session ---------------------------------------------------------------------------------


def test_a_library_that_is_not_installed_is_reported() -> None:
    needs = (Library("no_such_module", "no-such-distribution"),)
    result = _result(replace(_NAMED, needs=needs), run(replace(_NAMED, needs=needs)))
    assert result.seen.missing == "no-such-distribution not installed"
    assert verdict_of(result.seen) == "not run"
    assert not result.differs
    assert "1 not run" in summary([result])


def test_an_import_that_touches_nothing_is_clean() -> None:
    case = replace(_expecting(Expect.CLEAN), source="def test_import():\n    import json\n")
    seen = run(case)
    assert verdict_of(seen) == "clean", seen.output
    assert judge(case, seen) == ""


def test_an_import_that_fails_is_not_clean() -> None:
    case = replace(_expecting(Expect.CLEAN), source="def test_import():\n    import no_such\n")
    seen = run(case)
    assert verdict_of(seen) == "failed"
    assert "without a touch" in judge(case, seen)
    assert "No module named 'no_such'" in seen.output


def test_a_session_that_could_not_begin_is_not_observable() -> None:
    case = replace(_expecting(Expect.CLEAN), source="def test():\n    pass\n", device="no_such")
    seen = run(case)
    assert verdict_of(seen) == "not observable"
    assert "'no_such' is not a device" in seen.limits[0]
    assert judge(case, seen)


def test_a_clean_session_that_could_not_see_everything_is_not_observable() -> None:
    output = "cuda-fork: level touch, device none\ncuda-fork: not observable: touches of C code\n"
    seen = read(_expecting(Expect.CLEAN), ROOT, [], 0, output)
    assert seen.limits == ("touches of C code",)
    assert verdict_of(seen) == "not observable"
    assert judge(_expecting(Expect.CLEAN), seen) == "expected to be clean, is: not observable"


# -- the judgment --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (_REFUSED, ""),
        (_CLEAN, "has: clean"),
        (_PASSES, "has: passes"),
        (replace(_REFUSED, status=0), "the session passed"),
        (replace(_REFUSED, places=(replace(_PLACE, where="engine/core.py:71"),)), "core.py:71"),
        (
            replace(_REFUSED, places=(_PLACE, replace(_PLACE, where="other.py:1"))),
            "also blames other.py:1",
        ),
        (replace(_CLEAN, status=None), "no end"),
        (replace(_CLEAN, status=3), "exit status 3"),
        (replace(_CLEAN, limits=("all",)), "has: not observable"),
    ],
    ids=str,
)
def test_a_bug_must_be_named_by_a_session_that_fails(seen: Seen, words: str) -> None:
    difference = judge(_NAMED, seen)
    assert words in difference
    assert bool(difference) is bool(words)


@pytest.mark.parametrize(
    ("expect", "seen", "good"),
    [
        (Expect.SILENT, _PASSES, True),
        (Expect.SILENT, _REFUSED, False),
        (Expect.SILENT, replace(_CLEAN, limits=("all",)), False),
        (Expect.CLEAN, _CLEAN, True),
        (Expect.CLEAN, _PASSES, False),
        (Expect.ANYTHING, _CLEAN, True),
        (Expect.ANYTHING, _REFUSED, True),
        (Expect.ANYTHING, replace(_CLEAN, status=1), False),
    ],
)
def test_other_sessions_are_judged_by_what_they_expect(
    expect: Expect, seen: Seen, *, good: bool
) -> None:
    assert (judge(_expecting(expect), seen) == "") is good


def test_another_release_of_a_library_may_do_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(
        _expecting(Expect.NAMED), needs=(Library("cutlass", "nvidia-cutlass-dsl", "4.4.2"),)
    )
    monkeypatch.setattr(outcome, "version_of", lambda _name: "4.8.1")
    result = _result(case, _CLEAN)
    assert not result.differs
    assert "1 either way" in summary([result])
    assert "here is 4.8.1" in outcome.other_release(case.needs)
    monkeypatch.setattr(outcome, "version_of", lambda _name: "4.4.2")
    assert judge(case, _CLEAN)


def test_the_verdict_counts_what_differs() -> None:
    good, bad = _result(_NAMED, _REFUSED), _result(_NAMED, _PASSES)
    assert summary([good, good]) == "as expected: 2/2 bugs"
    assert summary([good, bad]) == "1 NOT AS EXPECTED: 1/2 bugs"


# -- the page ------------------------------------------------------------------------------------


def test_a_difference_is_printed_with_the_end_of_the_session() -> None:
    file = io.StringIO()
    seen = replace(_PASSES, output="\n".join(f"line {number}" for number in range(99)))
    page.Page(file).result(_result(_NAMED, seen))
    text = file.getvalue()
    assert "NOT AS EXPECTED: expected to name" in text
    assert "| line 98" in text
    assert "| line 1\n" not in text


def test_long_paths_keep_their_end_and_long_lines_their_beginning() -> None:
    place = replace(_PLACE, where="very/" * 40 + "core.py:7", source="x = " + "y" * 200)
    where, source, *_ = page.place_lines(place)
    assert where.endswith("core.py:7")
    assert source.startswith("  > x = y")
    assert max(len(where), len(source)) <= page.WIDTH


def test_a_failure_is_shown_without_the_stack_above_it() -> None:
    output = (
        "    def test():\n>       os.fork()\nE       CudaForkError: refused\nE       \nx.py:3\n"
    )
    assert page.failure_lines(output) == ["E  CudaForkError: refused", "E"]


def test_every_library_that_is_imported_is_one_that_is_needed() -> None:
    for case in cases.all_cases():
        match = re.search(r"import (\w+)", case.source) if isinstance(case.source, str) else None
        assert match is None or match[1] in [library.module for library in case.needs]
