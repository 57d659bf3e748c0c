"""Isolated tests with plugins that rerun, limit, shuffle and distribute tests."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Seen, Sessions, differences
from tests.support.isolation_plugins import FORKS, needs, same

FLAKY = """
    import os
    import pytest

    def _count(name):
        with open(name, "a") as file:
            file.write("x")
        return os.path.getsize(name)

    def test_third_time():
        print("in the test")
        assert _count("third") == 3

    @pytest.fixture
    def flaky_setup():
        assert _count("setup") == 2
        yield
        print("torn down")

    def test_setup(flaky_setup):
        pass

    def test_never():
        assert _count("never") == 0

    @pytest.mark.flaky(reruns=1)
    def test_marked():
        assert _count("marked") == 2

    def test_good():
        pass
"""


@pytest.mark.parametrize("method", METHODS)
def test_reruns_of_rerunfailures_happen_and_are_counted(tmp_path: Path, method: str) -> None:
    seen = same(tmp_path, method, ["rerunfailures"], {"test_it.py": FLAKY}, "--reruns=2", "-rR")
    assert any("4 passed" in line and "6 rerun" in line for line in seen[0].stdout), seen[0].stdout


@pytest.mark.parametrize("method", FORKS)
def test_reruns_stop_at_the_limit_of_the_suite(tmp_path: Path, method: str) -> None:
    same(
        tmp_path,
        method,
        ["rerunfailures"],
        {"test_it.py": FLAKY},
        "--reruns=2 --max-suite-reruns=3",
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_is_rerun_in_a_new_process(tmp_path: Path, method: str) -> None:
    module = needs("rerunfailures")
    (tmp_path / "test_it.py").write_text(
        "import os\n"
        "def test_crash():\n"
        "    with open('count', 'a') as file: file.write('x')\n"
        "    if os.path.getsize('count') < 3: os._exit(3)\n"
        "def test_never(): os._exit(4)\n"
        "def test_good(): pass\n"
    )
    seen = Sessions(tmp_path, "-v", "--reruns=2", plugins=[module]).run(method)
    assert any("1 failed, 2 passed, 4 rerun" in line for line in seen.stdout), seen.stdout


SLOW = """
    import sys
    import time
    import pytest

    @pytest.fixture
    def slow_setup():
        time.sleep(30)

    @pytest.fixture
    def slow_teardown():
        yield
        time.sleep(30)

    def test_body():
        print("before")
        time.sleep(30)

    def test_setup(slow_setup):
        pass

    def test_teardown(slow_teardown):
        pass

    @pytest.mark.timeout(0)
    def test_no_limit():
        time.sleep(0.6)

    @pytest.mark.timeout(0.3, func_only=True)
    def test_func_only():
        time.sleep(30)

    def test_good():
        pass
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_time_limit_of_pytest_timeout_is_reported_the_same(tmp_path: Path, method: str) -> None:
    seconds = {"spawn": 3}.get(method, 1)
    stacks = (r"^\+\+\+ Timeout \+\+\+$", r"^~~~ Stack of ")
    same(tmp_path, method, ["timeout"], {"test_it.py": SLOW}, f"--timeout={seconds}", known=stacks)


@pytest.mark.parametrize("method", METHODS)
def test_a_time_limit_kept_by_a_thread_fails_its_test_and_no_other(
    tmp_path: Path, method: str
) -> None:
    module = needs("timeout")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(SLOW), encoding="utf-8")
    options = ("-v", "--timeout=3", "--timeout-method=thread", "-k", "body or good or limit")
    seen = Sessions(tmp_path, *options, plugins=[module]).run(method)
    assert any("1 failed, 2 passed" in line for line in seen.stdout), seen.stdout
    assert any("Timeout (>3.0s) from pytest-timeout" in line for line in seen.stdout), seen.stdout
    assert any("time.sleep(30)" in line for line in seen.stdout), seen.stdout


@pytest.mark.parametrize("method", FORKS)
def test_the_time_limit_of_the_session_of_pytest_timeout_ends_it(
    tmp_path: Path, method: str
) -> None:
    source = "import time\ndef test_a(): time.sleep(1)\ndef test_b(): pass\ndef test_c(): pass\n"
    same(tmp_path, method, ["timeout"], {"test_it.py": source}, "--session-timeout=0.5")


RANDOM = """
    import random
    import pytest

    @pytest.mark.parametrize("i", range(5))
    def test_random(i, record_property):
        record_property("random", random.random())

    class TestClass:
        def test_a(self, record_property):
            record_property("random", random.randrange(10**9))
        def test_b(self):
            assert random.random() > 2
"""


@pytest.mark.parametrize("method", METHODS)
def test_order_and_seeds_of_randomly_are_the_same(tmp_path: Path, method: str) -> None:
    same(tmp_path, method, ["randomly"], {"test_it.py": RANDOM}, "--randomly-seed=7")


@pytest.mark.parametrize("method", FORKS)
def test_the_last_seed_of_randomly_is_kept(tmp_path: Path, method: str) -> None:
    runs = ("--randomly-seed=7", "--randomly-seed=last --lf")
    same(tmp_path, method, ["randomly"], {"test_it.py": RANDOM}, *runs)


MIXED = """
    import os
    import sys
    import warnings
    import pytest

    @pytest.mark.parametrize("i", range(4))
    def test_some(i, worker_id, tmp_path, record_property):
        record_property("i", i)
        print("worker", worker_id[:2])
        assert i != 2

    def test_warns():
        warnings.warn("look")

    def test_skips():
        pytest.skip("no")

    @pytest.mark.xfail
    def test_expected():
        assert 0

    @pytest.fixture
    def broken():
        raise ValueError("broken")

    def test_error(broken):
        pass

    def test_suite(record_testsuite_property):
        record_testsuite_property("a", 1)
"""


def _in_order(seen: Seen) -> Seen:
    """Return a session of xdist, whose tests end in any order."""

    def clean(lines: list[str]) -> list[str]:
        noise = r"^\[gw\d\] |\[ *\d+%\] |(?<=gw)\d"
        return sorted(re.sub(noise, "", line) for line in lines)

    return Seen(seen.status[:1], clean(seen.stdout), seen.stderr, clean(seen.junit), seen.files)


@pytest.mark.parametrize("method", METHODS)
def test_the_workers_of_xdist_report_the_same(tmp_path: Path, method: str) -> None:
    module = needs("xdist")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(MIXED), encoding="utf-8")
    sessions = Sessions(tmp_path, "-n2", "-v", "-rA", plugins=[module])
    before, after = (_in_order(sessions.history(how, ())[0]) for how in ("", method))
    known = (r"^\[gw", r"^(scheduling|created|\d+ workers|gw)", r"^bringing up")
    assert not differences(before, after, known), differences(before, after, known)
