"""The import audit in whole sessions: the same answers each time, beside all that a session has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid

import pytest

from pytest_cudafork.settings.devices import has_real_driver
from tests.support.imports import (
    SHOP,
    SHOP_VERDICTS,
    TOUCH,
    XDIST,
    Session,
    assert_gone,
    needs_xdist,
    run_audit,
    write_package,
)

IMPORTS = "--cuda-fork-imports=shop"
TEST = "def test_one(): pass\n"
SHUFFLE = """
import random
def pytest_collection_modifyitems(items):
    random.shuffle(items)
"""


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    write_package(pytester.path, "shop", SHOP)
    return pytester


def _facts(session: Session) -> set[tuple[str, str, str, str]]:
    facts = {
        (record["module"], record["verdict"], record["where"], record["reason"])
        for record in session.records
    }
    assert len(facts) == len(session.records)
    return facts


def _web(count: int) -> dict[str, str]:
    """Return a package in which many import many, some touch, and some fail."""
    files = {"__init__": "import os", "sub/__init__": "from web import m0"}
    for number in range(count):
        lines = [f"from web import m{other}" for other in range(number % 7, number, 9)]
        lines += {0: [], 5: [TOUCH], 8: ["raise ImportError('eight')"]}.get(number % 13, [])
        files[f"{'sub/' if number % 11 == 3 else ''}m{number}"] = "\n".join(lines)
    return files


@needs_xdist
def test_the_same_verdicts_whatever_the_order_and_the_number_of_workers(
    pytester: pytest.Pytester,
) -> None:
    write_package(pytester.path, "web", _web(40))
    args = ("--cuda-fork-imports=web",)
    first = run_audit(pytester, *args)
    facts = _facts(first)
    assert len(facts) == 42
    assert len({verdict for _, verdict, _, _ in facts}) == 4
    assert _facts(run_audit(pytester, *args, "--cuda-fork-imports-jobs=5")) == facts
    assert _facts(run_audit(pytester, *args, conftest=SHUFFLE)) == facts
    spread = run_audit(pytester, *XDIST, "-n2", *args)
    assert _facts(spread) == facts
    told = [line for line in first.section() if not line.startswith("confirmed")]
    assert [line for line in spread.section() if not line.startswith("confirmed")] == told


# -- with other tests --------------------------------------------------------------------------


def _ran(session: Session) -> tuple[bool, bool]:
    """Whether ordinary tests ran, and whether modules were imported."""
    names = session.outcomes
    return "test_it.py::test_one" in names, any(name.startswith("shop::") for name in names)


@pytest.mark.parametrize(
    ("ini", "args", "ran"),
    [
        (False, [IMPORTS], (False, True)),
        (False, [IMPORTS, "test_it.py"], (True, True)),
        (True, [], (True, True)),
        (True, ["test_it.py"], (True, False)),
        (True, ["test_it.py::test_one"], (True, False)),
        (True, ["shop::shop.clean"], (False, True)),
        (True, ["shop::shop.clean", "test_it.py"], (True, True)),
        (True, ["-k", "one or clean"], (True, True)),
    ],
)
def test_what_runs(
    shop: pytest.Pytester, ini: bool, args: list[str], ran: tuple[bool, bool]
) -> None:
    shop.makepyfile(test_it=TEST)
    if ini:
        shop.makeini("[pytest]\ncuda_fork_imports = shop.clean\n    shop.models\n    shop\n")
    session = run_audit(shop, *args)
    assert _ran(session) == ran
    if "shop::shop.clean" in args:
        assert session.verdicts == {"shop.clean": "clean"}


def test_the_environment_asks_for_an_audit_too(shop: pytest.Pytester) -> None:
    shop.makepyfile(test_it=TEST)
    env = {"PYTEST_CUDA_FORK_IMPORTS": "shop.clean", "PYTEST_CUDA_FORK_IMPORTS_JOBS": "1"}
    assert set(run_audit(shop, env=env).outcomes) == {
        "test_it.py::test_one",
        "shop.clean::shop.clean",
    }


@pytest.mark.parametrize(
    "args",
    [
        ["--cuda-fork-check=touch"],
        ["--cuda-fork-isolate=fork"],
        ["--cuda-fork-isolate=spawn"],
        ["--forked"],
        ["-s", "-p", "no:cacheprovider", "-p", "no:faulthandler"],
        ["-W", "error", "--setup-show", "--durations=3", "-vv"],
        ["-o", "faulthandler_timeout=0.2"],
        ["--import-mode=importlib", "--tb=line", "--capture=sys"],
        ["--stepwise", "--maxfail=99", "--color=yes"],
    ],
    ids=lambda args: args[0],
)
def test_beside_other_options(shop: pytest.Pytester, args: list[str]) -> None:
    session = run_audit(shop, IMPORTS, *args, "--deselect=shop::shop.hook")
    expected = {name: verdict for name, verdict in SHOP_VERDICTS.items() if name != "shop.hook"}
    if args[0] == "--stepwise":
        expected = {name: expected[name] for name in list(expected)[:4]}
    assert session.verdicts == expected
    assert session.result.ret in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert session.result.stderr.str() == ""


def test_without_a_terminal_plugin_the_status_tells(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "-p", "no:terminal")
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert session.verdicts == SHOP_VERDICTS


def test_together_with_the_check_each_says_its_own(shop: pytest.Pytester) -> None:
    shop.makepyfile(test_it=f"def test_one():\n    {TOUCH}\n")
    session = run_audit(shop, IMPORTS, "test_it.py", "--cuda-fork-check=touch")
    assert session.verdicts == SHOP_VERDICTS
    assert session.outcomes["test_it.py::test_one"] in ("failed", "error")
    counted = [line for line in session.out.splitlines() if line.startswith("touches: ")]
    assert len(counted) == 1
    assert counted[0].startswith("touches: 1")


def test_a_package_that_the_session_itself_uses(pytester: pytest.Pytester) -> None:
    session = run_audit(pytester, "--cuda-fork-imports=json,pytest_cudafork.observe.story.touch")
    assert set(session.verdicts.values()) == {"clean"}
    assert "json.decoder" in session.verdicts


def test_a_package_that_a_conftest_has_imported(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, conftest="import shop.clean\n")
    assert session.verdicts == SHOP_VERDICTS


# -- devices and files -------------------------------------------------------------------------


def test_without_a_gpu_in_sight(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-device=phantom", "-k", "flash or clean")
    assert session.verdicts == {"shop.clean": "clean", "shop.flash": "touches"}
    assert "phantom (no GPU)" in session.out


@pytest.mark.skipif(has_real_driver(), reason="there is a driver here")
def test_the_real_driver_must_be_there(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-device=real")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["*--cuda-fork-device=real*no NVIDIA driver*"])


def test_pictures_are_written(shop: pytest.Pytester) -> None:
    page = run_audit(shop, IMPORTS, "--cuda-fork-imports-graph=g.html")
    assert f"graph: {shop.path}/g.html" in page.section()
    assert "shop.models.big" in (shop.path / "g.html").read_text()
    run_audit(shop, IMPORTS, "--cuda-fork-imports-graph=g.dot", "-k", "flash or layers")
    assert '"shop.layers" -> "shop.flash"' in (shop.path / "g.dot").read_text()


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("graph=no/such/g.html", "the graph cannot be written: there is no folder *no/such'"),
        ("graph=g.svg", "*-graph: 'g.svg' is not a picture: *.html or .dot"),
        ("timeout=0", "*-timeout: '0' is not a number of seconds above 0"),
        ("jobs=many", "*-jobs: 'many' is not a number of processes*"),
        ("memory=lots", "*-memory: 'lots' is not a size*"),
        ("exclude=a b", "*-exclude: 'a b' is not a pattern*"),
        ("without=a+", "*-without: 'a+' is not a library*"),
    ],
)
def test_options_that_cannot_be(shop: pytest.Pytester, option: str, complaint: str) -> None:
    session = run_audit(shop, IMPORTS, f"--cuda-fork-imports-{option}")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines([f"*{complaint}"])
    assert session.reports == []


def test_a_picture_that_cannot_be_written_fails_the_session(shop: pytest.Pytester) -> None:
    (shop.path / "g.html").mkdir()
    session = run_audit(shop, IMPORTS, "--cuda-fork-imports-graph=g.html", "-k", "clean")
    assert session.result.ret == pytest.ExitCode.TESTS_FAILED
    assert any(line.startswith("the graph cannot be written: ") for line in session.section())


def test_nothing_left_to_audit_is_an_error(shop: pytest.Pytester) -> None:
    session = run_audit(shop, IMPORTS, "--cuda-fork-imports-exclude=other,sho?")
    assert session.result.ret == pytest.ExitCode.USAGE_ERROR
    session.result.stderr.fnmatch_lines(["*nothing is left of 'shop': it is excluded by *sho[?]"])


# -- interruptions -----------------------------------------------------------------------------

ENDLESS = {
    "__init__": "",
    "m0": "",
    "m1": "import os, subprocess, time\n"
    "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "open('started', 'a').close()\ntime.sleep(600)",
    "m2": "",
}


@pytest.fixture(params=["alone", "tried in the template"])
def endless(pytester: pytest.Pytester, request: pytest.FixtureRequest) -> list[str]:
    write_package(pytester.path, "endless", ENDLESS)
    if request.param != "alone":
        write_package(pytester.path, "endless", dict.fromkeys("abc", "import endless.m1"))
    return ["--cuda-fork-imports=endless", "-p", "pytest_cudafork.plugin"]


def _interrupt(
    pytester: pytest.Pytester, command: list[str], signum: int
) -> tuple[int, str, list[str]]:
    """Start a program, signal it while a module is imported; status, output, files left."""
    mark = uuid.uuid4().hex
    temporary = pytester.path / "temporary"
    temporary.mkdir()
    env = {
        **os.environ,
        "IMPORTS_TEST": mark,
        "TMPDIR": str(temporary),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_CUDA_FORK_DEVICE": "phantom:sm_90",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=pytester.path,
        env=env,
    )
    deadline = time.monotonic() + 30
    while not (pytester.path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signum)
    out, _ = process.communicate(timeout=30)
    if signum != signal.SIGKILL:
        assert_gone(mark)
    else:
        assert_gone(mark, but="sleep")
    return process.returncode, out, [path.name for path in temporary.iterdir()]


@pytest.mark.parametrize(
    ("signum", "extra"),
    [
        (signal.SIGINT, ()),
        (signal.SIGTERM, ()),
        pytest.param(signal.SIGINT, (*XDIST, "-n1"), marks=needs_xdist),
    ],
    ids=["int", "term", "worker"],
)
def test_an_interrupted_session_leaves_nothing_behind(
    pytester: pytest.Pytester, endless: list[str], signum: int, extra: tuple[str, ...]
) -> None:
    status, out, left = _interrupt(pytester, ["pytest", *endless, *extra], signum)
    assert status == (2 if signum == signal.SIGINT else 143), out
    assert left == []
    assert "INTERNALERROR" not in out
    if not extra:
        assert "endless::endless" in out


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_an_interrupted_command_leaves_nothing_behind(
    pytester: pytest.Pytester, endless: list[str], signum: int
) -> None:
    status, out, left = _interrupt(pytester, ["pytest_cudafork", "imports", "endless"], signum)
    assert status == 128 + signum, out
    assert left == []
    assert "Traceback" not in out


def test_a_session_that_is_killed_takes_its_imports_with_it(
    pytester: pytest.Pytester, endless: list[str]
) -> None:
    status, _, _ = _interrupt(pytester, ["pytest", *endless], signal.SIGKILL)
    assert status == -signal.SIGKILL
