"""Tests of the questions after each test; a stand-in for the GPU answers, in this process."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.health import core_dump, fitness, hooks, words
from pytest_cudafork.health.driver import Broken
from pytest_cudafork.settings import environment

BROKEN = Broken(0, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")


class _Gpu(ModuleType):
    """What the tests of a session change, and the hooks ask."""

    def __init__(self) -> None:
        super().__init__("stand_in_gpu")
        self.error: Broken | None = None
        self.capturing = False
        self.lost = ""
        self.pool = False
        """Whether a test has left a pool that no graph has."""
        self.refused = False
        """Whether the driver has refused a capture."""
        self.memory = 0
        self.asked = 0

    def spoil(self) -> None:
        """Break the context."""
        self.error = BROKEN

    def driver(self) -> Any:
        """Return what stands for the driver."""

        def broken() -> Broken | None:
            self.asked += 1
            return self.error

        return SimpleNamespace(
            begin=lambda: None,
            look=lambda: None,
            is_initialized=True,
            is_capturing=lambda: self.capturing,
            broken=broken,
            refused_a_capture=lambda: self.refused,
            log=lambda: "the driver's words",
        )

    def allocator(self) -> Any:
        """Return what stands for torch's allocator."""
        return SimpleNamespace(
            begin=lambda: None,
            is_capturing=lambda: False,
            left_by_capture=lambda *, suspicious: self.lost if suspicious or self.pool else "",
            kept=lambda: self.memory,
        )


class _Run:
    """A session in this process."""

    def __init__(self, pytester: pytest.Pytester, gpu: _Gpu) -> None:
        self._pytester, self._gpu = pytester, gpu
        self.reports: list[pytest.TestReport] = []
        self.config: pytest.Config | None = None

    def __call__(
        self, source: str, mode: str = "fail", *, isolated: bool = False
    ) -> dict[str, str]:
        """Run tests; return the outcomes that are no passed phases, by test and phase."""
        run = self

        class Plugin:
            def pytest_configure(self, config: pytest.Config) -> None:
                run.config = config
                config.pluginmanager.register(hooks.HealthHooks(mode, isolated=isolated))

            def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                run.reports.append(report)

        self._pytester.makepyfile(f"import pytest, stand_in_gpu as gpu\n{source}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            plugins = ("-p", "pytest_cudafork.plugin", "-p", "no:unraisableexception")
            self._pytester.inline_run(*plugins, plugins=[Plugin()])
        return {
            f"{report.nodeid.rpartition('::')[2]} {report.when}": report.outcome
            for report in self.reports
            if not report.passed
        }

    def told(self, test: str, when: str) -> pytest.TestReport:
        """Return the report of a phase of a test."""
        (found,) = [
            one for one in self.reports if one.nodeid.endswith(f"::{test}") and one.when == when
        ]
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    """The stand-in."""
    made = _Gpu()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(hooks, "Driver", made.driver)
    monkeypatch.setattr(hooks, "Allocator", made.allocator)
    return made


@pytest.fixture
def run(pytester: pytest.Pytester, gpu: _Gpu) -> _Run:
    """Runs sessions."""
    return _Run(pytester, gpu)


def test_a_healthy_session_is_asked_after_each_call_and_teardown(run: _Run, gpu: _Gpu) -> None:
    assert run("def test_a(): pass\ndef test_b(): pass\n") == {}
    assert gpu.asked == 4
    assert all(not hasattr(report, words.NAME) for report in run.reports)


@pytest.mark.parametrize("mode", ["fail", "recover"])
def test_the_first_sick_test_fails_and_no_other_runs_here(run: _Run, mode: str) -> None:
    source = "def test_a(): pass\ndef test_b(): gpu.spoil()\ndef test_c(): assert 0\n"
    assert run(source, mode) == {"test_b call": "failed", "test_c setup": "skipped"}
    report = run.told("test_b", "call")
    assert "last healthy: test_the_first_sick" in report.longreprtext
    assert "::test_a\n" in report.longreprtext
    assert "the driver's words" in report.longreprtext
    assert vars(report)[words.NAME][words.SICK]["recover"] is (mode == "recover")
    assert vars(run.told("test_c", "setup"))[words.NAME][words.NOT_RUN].endswith("::test_b")
    assert run.config is not None
    assert fitness.unfit(run.config) is not None


def test_a_shared_process_always_goes_on_elsewhere(run: _Run) -> None:
    run("def test_b(): gpu.spoil()\n", "fail", isolated=True)
    assert vars(run.told("test_b", "call"))[words.NAME][words.SICK]["recover"] is True


def test_a_failure_of_its_own_gets_a_section_and_an_expected_one_fails(run: _Run) -> None:
    assert run("def test_b():\n    gpu.spoil()\n    assert 0, 'mine'\n") == {
        "test_b call": "failed"
    }
    report = run.told("test_b", "call")
    assert "mine" in report.longreprtext
    assert [name for name, _ in report.sections if name == words.SECTION] == [words.SECTION]


@pytest.mark.parametrize("body", ["pytest.xfail('known')", "pytest.skip('no')"])
def test_nothing_that_was_expected_hides_a_sick_gpu(run: _Run, body: str) -> None:
    outcomes = run(f"def test_b():\n    gpu.spoil()\n    {body}\n")
    assert outcomes == {"test_b call": "failed"}
    report = run.told("test_b", "call")
    assert not hasattr(report, "wasxfail")
    assert "The test itself: skipped" in report.longreprtext


def test_what_is_set_up_is_torn_down_with_the_sick_test(run: _Run) -> None:
    outcomes = run(
        """
order = []
@pytest.fixture(scope="session")
def wide():
    yield
    order.append("down")
def test_b(wide): gpu.spoil()
def test_c(wide): pass
def test_d(): pass
gpu.order = order
"""
    )
    assert outcomes["test_b call"] == "failed"
    assert sys.modules["stand_in_gpu"].order == ["down"]


def test_sickness_that_comes_with_the_teardown_is_an_error_of_that_test(run: _Run) -> None:
    outcomes = run(
        """
@pytest.fixture
def gpu_user():
    yield
    gpu.spoil()
@pytest.fixture(scope="module")
def wide():
    yield
    raise OSError("no end")
def test_b(wide, gpu_user): pass
def test_c(wide): pass
"""
    )
    assert outcomes == {"test_b teardown": "failed", "test_c setup": "skipped"}
    sections = dict(run.told("test_b", "teardown").sections)
    assert "no end" in sections[words.SECTION]


def test_a_failed_setup_is_asked_after_and_a_passed_one_is_not(run: _Run, gpu: _Gpu) -> None:
    source = (
        "@pytest.fixture\ndef bad():\n    gpu.spoil()\n    raise OSError\ndef test_b(bad): pass\n"
    )
    assert run(source) == {"test_b setup": "failed"}
    assert gpu.asked == 1


def test_a_capture_that_a_fixture_holds_open_is_left_alone_until_the_teardown(run: _Run) -> None:
    held = """
@pytest.fixture
def capture():
    gpu.capturing = True
    yield
    gpu.capturing = False
def test_a(capture): gpu.error = None
def test_b(): gpu.capturing = True
"""
    assert run(held) == {"test_b teardown": "failed"}
    assert words.OPEN_CAPTURE in run.told("test_b", "teardown").longreprtext


def test_a_lost_capture_and_kept_memory_are_told(run: _Run, gpu: _Gpu) -> None:
    gpu.memory = 3 << 20
    gpu.pool = True
    run("def test_a(): pass\ndef test_b(): gpu.lost = 'a failed CUDA'\n")
    assert vars(run.told("test_a", "teardown"))[words.NAME] == {words.KEPT: 3 << 20}
    assert "a failed CUDA" in run.told("test_b", "call").longreprtext


def test_what_the_driver_says_of_a_capture_makes_a_test_that_passed_suspicious(
    run: _Run, gpu: _Gpu
) -> None:
    gpu.lost = words.LEFT_IN_CAPTURE
    told = run("def test_a(): pass\ndef test_b(): gpu.refused = True\n")
    assert told["test_b call"] == "failed"
    assert "test_a call" not in told


def test_a_test_that_runs_again_in_its_broken_process_fails(run: _Run, gpu: _Gpu) -> None:
    assert run("def test_b(): gpu.spoil()\n") == {"test_b call": "failed"}
    made = hooks.HealthHooks("fail", isolated=False)
    since = run.told("test_b", "call").nodeid
    item: Any = SimpleNamespace(config=run.config, nodeid=since, stash=pytest.Stash())
    item.iter_markers = lambda: iter(())
    item.get_closest_marker = lambda name: None
    with pytest.raises(pytest.fail.Exception, match="not run: the CUDA context is broken since"):
        made.pytest_runtest_setup(item)


def test_a_part_of_a_test_that_was_told_first_does_not_let_the_test_pass(
    run: _Run, gpu: _Gpu
) -> None:
    outcomes = run(
        """
def test_b(request):
    gpu.spoil()
    item = request.node
    call = pytest.CallInfo.from_call(lambda: None, when="call")
    item.ihook.pytest_runtest_makereport(item=item, call=call)
"""
    )
    assert outcomes == {"test_b call": "failed"}
    assert "since a part of this test" in run.told("test_b", "call").longreprtext


def test_a_core_dump_is_named(run: _Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.CORE_DUMP, "1")
    monkeypatch.setattr(core_dump, "written_since", lambda moment: "/x/core_1.nvcudmp")
    run("def test_b(): gpu.spoil()\n")
    assert "GPU core dump: /x/core_1.nvcudmp" in run.told("test_b", "call").longreprtext


def test_what_a_failure_holds_is_let_go(run: _Run, gpu: _Gpu) -> None:
    outcomes = run(
        """
import weakref
class Tensor: pass
def test_a():
    tensor = Tensor(); gpu.kept = weakref.ref(tensor)
    assert not tensor
def test_b(): assert gpu.kept() is None
"""
    )
    assert outcomes == {"test_a call": "failed"}


def test_a_forked_process_begins_anew(gpu: _Gpu) -> None:
    made = hooks.HealthHooks("fail", isolated=False)
    made._last_healthy, made._pid = "t.py::a", made._pid - 1
    made._begin()
    assert (made._last_healthy, made._isolated) == ("", True)
