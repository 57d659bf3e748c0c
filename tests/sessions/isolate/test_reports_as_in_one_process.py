"""Isolated tests: what a session shows, writes and keeps cannot be told from a run in one process.

A corpus of tests is run in one process and isolated by each method, and everything that is left of
the two sessions is compared: exit status, terminal, JUnit file, cache, log file. What must differ
stands in ``INHERENT``, with the reason, and in docs/explanation/isolation.md.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.isolation_compare import Seen, Sessions, differences, use_corpus

PYTEST_9 = pytest.version_tuple >= (9, 0)

ALL = ("-rA", "-vv", "--durations=0", "--doctest-modules", "-o", "junit_logging=all")
STARTED_AFRESH = pytest.mark.fresh_interpreter("its tests tell sys.flags")
CORPORA = (
    *("outcomes", "output", "params", "kinds"),
    pytest.param("surroundings", marks=STARTED_AFRESH),
)

# What does not concern each other shares a session: each costs two, one of them isolated.
OPTIONS: dict[str, list[str]] = {
    "-s": ["-s -v --runxfail -rA"],
    "capture": [
        "--capture=sys -rA -o console_output_style=count",
        "--capture=tee-sys -rA -o console_output_style=times -q",
        "--capture=no -p no:logging -o console_output_style=classic -qq",
    ],
    "setup-show": ["--setup-show", "--setup-show -s"],
    "setup-only": ["--setup-only -v", "--setup-plan"],
    "-x": ["-x", "--lf", "--ff -x", "--nf"],
    "maxfail": ["--maxfail=3", "--lf --maxfail=1", "--cache-clear --co -q"],
    "stepwise": ["--sw", "--sw", "--sw --sw-skip"],
    "-W": [
        "-W error -rA -o junit_family=xunit1 -o junit_logging=all",
        "-W ignore -rA -o junit_family=legacy -o junit_logging=system-out --junit-prefix=pre",
        "-W default -p no:warnings --durations=0 --durations-min=0",
    ],
    "color": ["--color=yes -rA -v -o xfail_strict=true --strict-markers"],
    "tb": [
        "--tb=short -l",
        "--tb=line --durations=0 -vv",
        "--tb=long -l -vvv",
        "--tb=no -q",
        "--show-capture=log",
    ],
    "tb-inside": ["--tb=native --import-mode=importlib", "--full-trace"],
    "log": [
        "-o log_cli=true --log-cli-level=INFO",
        "--log-file=log.txt --log-file-level=INFO -o log_cli=true -v",
    ],
    "without": ["-p no:cacheprovider -p no:junitxml -p no:capture"],
    "selection": ["-k pass --deselect test_small.py::test_fail", "test_small.py::test_params"],
}

Expected = Callable[..., list[Seen]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


@pytest.fixture(scope="module")
def expected(directory: Path) -> Expected:
    """Return the sessions in one process, run once for all methods."""

    @functools.lru_cache
    def run(options: tuple[str, ...], *runs: str) -> list[Seen]:
        sessions = Sessions(directory, *options, keeps=["log.txt"])
        return sessions.history("", *(one.split() for one in runs))

    return run


def _compare(
    directory: Path, expected: Expected, method: str, options: tuple[str, ...], *runs: str
) -> None:
    before = expected(options, *runs)
    sessions = Sessions(directory, *options, keeps=["log.txt"])
    after = sessions.history(method, *(one.split() for one in runs))
    for run, one, other in zip(runs, before, after, strict=True):
        difference = differences(one, other)
        assert not difference, f"{options} {run}\n{difference}"


@pytest.mark.parametrize("corpus", CORPORA)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_everything_a_test_can_do_is_reported_the_same(
    directory: Path, expected: Expected, method: str, corpus: str
) -> None:
    use_corpus(directory, corpus)
    _compare(directory, expected, method, ALL, f"test_{corpus}.py")


@pytest.mark.skipif(not PYTEST_9, reason="subtests came with pytest 9")
@pytest.mark.parametrize(
    ("method", "verbose"), [("fork", "-vv -s"), ("forkserver", "-q -s"), ("spawn", "-vv -s")]
)
def test_subtests_are_reported_the_same(
    directory: Path, expected: Expected, method: str, verbose: str
) -> None:
    # With capture, pytest takes what it writes of a subtest of unittest for output of the test.
    use_corpus(directory, "subtests")
    _compare(directory, expected, method, ("-rA",), f"test_subtests.py {verbose}")
    without = f"test_subtests.py {verbose[:-3]} --deselect=test_subtests.py::TestUnit"
    _compare(directory, expected, method, ("-rA",), without)


# The two methods take turns: what a child reports and how it is replayed is the same code in both.
@pytest.mark.parametrize(
    ("method", "options"), [(("fork", "forkserver")[i % 2], each) for i, each in enumerate(OPTIONS)]
)
def test_an_option_does_the_same(
    directory: Path, expected: Expected, method: str, options: str
) -> None:
    use_corpus(directory, "small")
    # not for all: some options are about what is collected
    runs = [f"test_small.py {run}" if "::" not in run else run for run in OPTIONS[options]]
    _compare(directory, expected, method, (), *runs)


@pytest.mark.parametrize(
    ("corpus", "run"),
    [
        ("small", "-s -v -o log_cli=true --color=yes -rA --log-file=log.txt --log-file-level=INFO"),
        ("small", "--setup-show -x -o junit_family=xunit1"),
        pytest.param("surroundings", "-rA -vv", marks=STARTED_AFRESH),
    ],
)
def test_a_fresh_interpreter_reports_the_same(
    directory: Path, expected: Expected, corpus: str, run: str
) -> None:
    use_corpus(directory, corpus)
    _compare(directory, expected, "spawn", (), f"test_{corpus}.py {run}")
