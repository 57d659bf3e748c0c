"""The page of real sessions: from the option, from their JSON, and without what makes it."""

from __future__ import annotations

import json
import re
import sys

import pytest

from tests.support.documents import read_document
from tests.support.sessions import check, module, run_session

pytest.importorskip("jinja2", reason="makes the page")

TESTS = module(
    """
@pytest.mark.parametrize("word", ["</script><script>alert(1)</script>", "{{7*7}}", "\\udcff"])
def test_named(word):
    pass

def test_touches():
    touch()

@pytest.mark.cuda_isolated(method="forkserver")
def test_isolated():
    pass

def test_forks():
    os.fork()
"""
)
IS_IMPORTED = """
import sys

import pytest

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    print("imported:", sorted({"jinja2", "markupsafe"} & set(sys.modules)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("xdist", [False, True], ids=["alone", "xdist"])
def test_the_page_of_a_session_is_that_of_its_json(
    pytester: pytest.Pytester, *, xdist: bool
) -> None:
    pytester.makepyfile(test_it=TESTS)
    files = ("--cuda-fork-json=s.json", "--cuda-fork-html=s.html")
    result = check(pytester, "fork", *files, *(("-p", "xdist", "-n1") if xdist else ()))
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"HTML: {pytester.path}/s.html"])
    made = read_document(pytester.path / "s.json", "session")
    page = (pytester.path / "s.html").read_text(encoding="utf-8")
    assert "Not good: exit status 1, tests or checks failed" in page
    assert page.count("alert(1)") == page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 0
    for test in made["tests"]:
        assert test["outcome"] in ("passed", "failed")
    assert len(re.findall(r' id="test-\d+"', page)) == len(made["tests"]) == 6
    assert "fork refused at test_it.py" in page
    assert "isolated by forkserver: test_it.py::test_isolated" in page
    done = pytester.run(sys.executable, "-m", "pytest_cudafork", "html", "s.json", "again.html")
    assert done.ret == 0
    again = (pytester.path / "again.html").read_text(encoding="utf-8")
    assert without_times(again) == without_times(page)


def without_times(page: str) -> str:
    """Return a page without figures: each file of a session is written at another moment."""
    axis = re.sub(r'<div class="lane axis".*?</div>', "", page)
    # with what is before them: shorter ones are indented further
    return re.sub(r" *(\d+ min )?[\d.]+( ms| s|%)|data-seconds=\S+", "", axis)


@pytest.mark.slow
def test_what_makes_the_page_is_imported_for_a_page_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(IS_IMPORTED)
    pytester.makepyfile("def test_a(): pass")
    told = {
        option: run_session(pytester, "-s", *(option,) if option else ()).stdout.str()
        for option in ("", "--cuda-fork-json=s.json", "--cuda-fork-html=s.html")
    }
    imported = {option: "imported: []" not in text for option, text in told.items()}
    assert imported == {
        "": False,
        "--cuda-fork-json=s.json": False,
        "--cuda-fork-html=s.html": True,
    }


def test_where_it_is_missing_the_extra_is_named_before_any_test_runs(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        hides="import sys; sys.modules['jinja2'] = None",
        test_a="def test_a(): raise SystemExit('a test ran')",
    )
    result = run_session(pytester, "-p", "hides", "--cuda-fork-html=s.html")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    (told,) = [line for line in result.stderr.lines if line.startswith("ERROR")]
    assert told == (
        "ERROR: --cuda-fork-html: the page is made with Jinja2, which is not installed: "
        "pip install pytest-cudafork[html]"
    )
    assert not (pytester.path / "s.html").exists()


def test_where_it_goes_missing_in_between_the_session_says_so_and_fails(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeconftest("import sys; sys.modules['jinja2'] = None")
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-html=s.html")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in result.stdout.str()
    result.stdout.fnmatch_lines(
        ["ERROR: the HTML file * cannot be written: Jinja2 cannot be imported: *"]
    )


@pytest.mark.slow
def test_a_session_that_was_not_watched_is_not_green(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    result = run_session(pytester, "--cuda-fork-html=s.html", "--cuda-fork-json=s.json")
    assert result.ret == 0
    assert json.loads((pytester.path / "s.json").read_text())["good"] is True
    page = (pytester.path / "s.html").read_text(encoding="utf-8")
    assert '<p class="pill unsure" id="verdict">' in page
    assert "nothing was watched: --cuda-fork-check is off" in page
