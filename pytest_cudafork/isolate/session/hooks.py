"""The way from a test's markers and the options to its process, and what the user sees of it."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Generator
from os import _exit, getpid
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.settings.markers import marks_of
from pytest_cudafork.settings.option import uses_debugger

if TYPE_CHECKING:
    from pytest_cudafork.check.start_method import ProcessState
    from pytest_cudafork.health.fitness import Unfit
    from pytest_cudafork.isolate.policy import IsolationConfig, Method
    from pytest_cudafork.isolate.session.children import Children
    from pytest_cudafork.process.forking.short_stack import Steps
    from pytest_cudafork.process.protocol.server_messages import CannotFork

_NEEDS_FORK_SERVER = ("forkserver", "auto")


class IsolationHooks:
    """The hooks that take over isolated tests.

    A plugin object of its own, registered when pytest is configured: later than every installed
    plugin, so it is asked before those that would fork the test (pytest-forked).
    """

    def __init__(self, config: pytest.Config, isolate: str | None) -> None:
        """Read what the session asks for; ``isolate`` is its method for every test, if any."""
        # what is loaded is copied when this is, so before the first test module is imported
        import pytest_cudafork.compat.unpatched  # noqa: F401

        self._config = config
        self._pid = getpid()
        session = config.stash[SESSION]
        self._isolate = isolate
        self._debugger = uses_debugger(config)
        self._inside = session.isolated
        self._isolates_all = self._isolate not in (None, "none") and not self._off
        audited = session.settings.captures == "audit"
        self._may_recover = audited or session.settings.health == "recover"
        """Whether every test may have to get a process of its own before the session ends."""
        self._running = True
        self._slower: dict[str, int] = {}
        """How many tests were given a dearer method than they asked for, by the reason."""
        self._outputs: dict[str, str] = {}
        """What a fork server wrote that could not be used, by the reason that is told."""
        self._positions: dict[pytest.Item, int] = {}
        self._spawns = True
        """Whether any test of the session is to be spawned, as far as that is known."""
        self._collected: list[pytest.Item] = []

    @property
    def _off(self) -> bool:
        """Whether nothing is isolated in this process."""
        # a forked child has these hooks too
        return self._inside or self._debugger or self._pid != getpid()

    @property
    def _runs_tests(self) -> bool:
        """Whether tests run in this process; pytest-xdist's controller shows itself late."""
        only = getattr(self._config.option, "collectonly", False)
        return not (self._config.pluginmanager.has_plugin("dsession") or only)

    # -- the fork server is started as early as it is known to be needed --------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        """Start the fork server if every test is to have a child of it."""
        if self._isolate == "forkserver" and self._isolates_all and self._runs_tests:
            self._start_fork_server([str(arg) for arg in self._config.args])

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self,
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Start it when an import makes this process unsafe to fork."""
        report = yield
        if self._isolate == "auto" and self._isolates_all and self._runs_tests:
            from pytest_cudafork.check.start_method import automatic

            needed = automatic(self._state()).name == "forkserver"
            if needed and not self._children().has_fork_server:
                self._start_fork_server([str(arg) for arg in self._config.args])
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Keep the order of collection, before anybody deselects tests or changes it."""
        self._collected = list(items)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Start it if a marker asks for it: it collects the files with such tests only."""
        if self._off or not self._runs_tests or self._isolate == "none":
            return
        from pytest_cudafork.isolate.policy import wanted_method

        rules = self._rules()
        wanted = {item: wanted_method(marks_of(item), rules) for item in session.items}
        if not any(wanted.values()) and not self._may_recover:
            return
        self._mind_snapshots([item for item, method in wanted.items() if method])
        self._positions = {item: number for number, item in enumerate(session.items)}
        self._spawns = "spawn" in wanted.values()
        from pytest_cudafork.isolate import earlier_tests, item_names

        earlier_tests.begin(self._config, session.items)

        item_names.number_namesakes(self._collected)
        self._config.stash[item_names.COLLECTED] = self._collected
        needing = [item for item, method in wanted.items() if method in _NEEDS_FORK_SERVER]
        collected = needing
        if self._may_recover:  # whatever runs here now may have to go there
            collected = [item for item in wanted if not marks_of(item).left_alone]
        if not collected or self._children().has_fork_server:
            return
        targets = list(dict.fromkeys(str(item.path) for item in collected))
        from pytest_cudafork.check.start_method import automatic

        auto = automatic(self._state()).name
        if needing and "forkserver" in (*wanted.values(), auto):
            self._start_fork_server(targets)
        else:  # a test in this process may still make it unsafe to fork
            self._children().expect(targets)

    def _mind_snapshots(self, isolated: list[pytest.Item]) -> None:
        from pytest_cudafork.compat.plugins import snapshots

        option = snapshots.only_compare(self._config, isolated)
        if option is None:
            return
        text = (
            f"{option}: no snapshot is written. What was compared in the processes of "
            f"{len(isolated)} isolated tests is not known where this session ends, and snapshots "
            "would be deleted as unused. Update them with --cuda-fork-isolate=none"
        )
        if not hasattr(self._config, "workerinput"):
            raise pytest.UsageError(text)
        from pytest_cudafork.process.loud_warning import loud_warning

        loud_warning(pytest.PytestWarning(text))  # a worker cannot end the controller's session

    def _start_fork_server(self, targets: list[str]) -> None:
        self._children().start_fork_server(targets)

    def _children(self) -> Children:
        from pytest_cudafork.isolate.session.children import children_of

        return children_of(self._config)

    # -- tests -----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        """Run the test in a process of its own if it is to have one; None leaves it to pytest."""
        steps = self._steps(item, nextitem)
        if steps is None:
            return None
        from pytest_cudafork.process.forking.short_stack import EXIT_LOST

        for due in steps:
            if due.make():
                # As ``short_stack.perform``, in place: each frame is one that the test has not.
                try:
                    for turn in due.turns():
                        try:
                            turn.call()
                        except BaseException as error:
                            turn.error = error
                finally:
                    _exit(EXIT_LOST)
        return True

    def _steps(self, item: pytest.Item, nextitem: pytest.Item | None) -> Steps[None] | None:
        """Return what is to be done for a test that is to have a process of its own."""
        marks = marks_of(item)
        asked = self._isolates_all or marks.spawn_only or marks.isolated
        asked = asked or (self._may_recover and self._unfit is not None)
        if not asked or self._off or marks.complaint:
            return None
        from pytest_cudafork.isolate import policy
        from pytest_cudafork.isolate.session.run_test import isolate
        from pytest_cudafork.process import termination

        rules = self._rules()
        if policy.wanted_method(marks, rules) is None:
            return None
        # the child keeps it; here it would end the session, or come while the server gets ready
        termination.stop_time_limit(item)
        state = functools.cache(self._state)  # nothing of the user's runs between two looks
        children = self._children()
        going_on = children.going_on_to(item, nextitem)
        if going_on is not None:  # nothing of the user's has run here since it was chosen
            same = policy.for_another(going_on.method, marks, rules)
            return isolate(item, nextitem, same, children, going_on.following)
        method = policy.choose(marks, rules, state)
        if method is not None and marks.fixtures == "inherit":
            from pytest_cudafork.isolate.session.inherit import checked

            method = checked(item, method)
        if method is None or (method.refusal and _is_skipped(item)):
            return None
        if method.name == "forkserver":
            why_not = children.why_not_forked(item)
            if why_not is not None:
                method = policy.instead_of_fork_server(method, self._reason(why_not))
        following = self._group_mate(item, nextitem)
        if following is None:
            upcoming = self._upcoming(item, nextitem) if self._spawns else []
            next_forks = functools.partial(self._next_forks, method, item, nextitem, state)
            children.look_ahead(item, upcoming, next_forks)
        else:
            children.look_ahead(item, ())
        if marks.fixtures == "inherit":
            from pytest_cudafork.isolate.session.inherit import isolate_body

            return isolate_body(item, nextitem, method, children)
        if following is None:
            return isolate(item, nextitem, method, children)
        from pytest_cudafork.isolate.session.ahead import after_next

        after = functools.partial(
            after_next, item, following, self._positions.get(item), self._go_together
        )
        return isolate(item, nextitem, method, children, following, after)

    def runs_here(self, item: pytest.Item) -> bool:
        """Whether a test that a marker isolates has no process of its own in this session."""
        if self._inside or self._pid != getpid():
            return False  # this is its process
        from pytest_cudafork.isolate.policy import wanted_method

        return wanted_method(marks_of(item), self._rules()) is None

    def _reason(self, why_not: CannotFork) -> str:
        """Return why the fork server cannot run a test, with the line that is to why_not."""
        watch = self._config.stash[SESSION].watch
        if why_not.kind != "cuda":
            self._outputs[why_not.reason] = why_not.output
            return why_not.reason
        if watch is None:
            return f"{why_not.reason} (--cuda-fork-check names the line)"
        touch = watch.observer.history().initializer(why_not.pid)
        if touch is None:
            return why_not.reason
        from pytest_cudafork.observe.story.words import place_of

        return f"{why_not.reason} (first touch: {place_of(touch.frames)})"

    def _group_mate(self, item: pytest.Item, nextitem: pytest.Item | None) -> pytest.Item | None:
        """Return the next test if it shares the process with this one."""
        return nextitem if nextitem is not None and self._go_together(item, nextitem) else None

    def _go_together(self, item: pytest.Item, nextitem: pytest.Item) -> bool:
        """Whether two tests that follow each other share a process."""
        from pytest_cudafork.isolate.groups import share_process
        from pytest_cudafork.isolate.policy import wanted_method

        if not share_process(item, nextitem):
            return False
        rules = self._rules()
        here, there = (wanted_method(marks_of(one), rules) for one in (item, nextitem))
        return here == there

    def _upcoming(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.Item]:
        """Return the tests to come that will surely be spawned, as far as that is known."""
        if hasattr(self._config, "workerinput"):  # the controller decides what comes
            upcoming = [] if nextitem is None else [nextitem]
        else:
            first = self._positions.get(item, len(self._positions)) + 1
            upcoming = item.session.items[first : first + _LOOK_AHEAD]
        from pytest_cudafork.isolate.policy import wanted_method

        rules = self._rules()
        # the environment of a test with GPUs of its own is not known before it has them
        plain = [one for one in upcoming if not marks_of(one).gpus]
        return [one for one in plain if wanted_method(marks_of(one), rules) == "spawn"]

    def _next_forks(
        self,
        method: Method,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        look: Callable[[], ProcessState],
    ) -> list[pytest.Item]:
        """Return the next tests that will be forked as this one is, as far as that is sure."""
        from pytest_cudafork.check.start_method import CLEAN

        forked = method.name == "fork" and not method.refusal and look().cuda == CLEAN
        if not forked or nextitem is None or not self._is_forked(nextitem, look):
            return []
        from pytest_cudafork.isolate.session.ahead import may_work_ahead

        found = [nextitem]
        place = self._positions.get(item)
        items = item.session.items
        if place is None or items[place + 1 : place + 2] != found or not may_work_ahead(item):
            return found
        for one in items[place + 2 : place + 1 + _FORKS_AHEAD]:
            if self._go_together(found[-1], one) or not self._is_forked(one, look):
                break
            found.append(one)
        return found

    def _is_forked(self, item: pytest.Item, look: Callable[[], ProcessState]) -> bool:
        """Whether a test will be forked, and may be before its turn."""
        from pytest_cudafork.isolate import policy

        marks = marks_of(item)
        if marks.complaint or marks.gpus or marks.env or marks.fixtures == "inherit":
            return False
        method = policy.choose(marks, self._rules(), look)
        return method is not None and method.name == "fork"

    def _state(self) -> ProcessState:
        """Return how safe this process is to fork, now."""
        from pytest_cudafork.check.start_method import process_state

        return process_state(self._config.stash[SESSION].watch)

    def _rules(self) -> IsolationConfig:
        from pytest_cudafork.isolate.policy import IsolationConfig

        return IsolationConfig(
            every_test=self._isolate,
            timeout=self._config.stash[SESSION].settings.isolate_timeout,
            debugger=self._debugger,
            inside=self._inside,
            unfit=self._unfit,
        )

    @property
    def _unfit(self) -> Unfit | None:
        """Why tests that would run in this process must have another one; None: they need not."""
        if not self._may_recover:
            return None
        from pytest_cudafork.health.fitness import recovering_from

        return recovering_from(self._config)

    # -- what the user sees ----------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport, config: pytest.Config
    ) -> Generator[None, Any, Any]:
        """Say with ``-v`` how a test was isolated; with ``-vv`` also why not more cheaply."""
        status = yield
        method = getattr(report, "isolation", None)
        if method is None or status is None or not status[2]:
            return status
        verbose = int(config.getoption("verbose", 0))
        if verbose < 1 or not self._running:  # programs read the lines of the summary at the end
            return status
        category, letter, word = status
        why = getattr(report, "isolation_why", "") if verbose > 1 else ""
        added = f" ({method}: {why})" if why else f" ({method})"
        if isinstance(word, tuple):
            return category, letter, (f"{word[0]}{added}", word[1])
        return category, letter, f"{word}{added}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the tests that a fork server could not run; those of workers too."""
        why = getattr(report, "isolation_why", "")
        if report.when == "setup" and getattr(report, "isolation", "") == "spawn" and why:
            self._slower[why] = self._slower.get(why, 0) + 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which tests were slower than they need be, and why."""
        if not self._slower:
            return
        from pytest_cudafork.counted import count_of

        terminalreporter.section("isolation")
        for why, count in self._slower.items():
            terminalreporter.write_line(f"{count_of(count, 'test')} by spawn, {why}")
        for output in filter(None, self._outputs.values()):
            terminalreporter.write_line("the fork server wrote:")
            for line in output.splitlines()[-_MOST_OUTPUT:]:
                terminalreporter.write_line(f"    {line}")

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Add what children have measured, before pytest-cov (a wrapper around this) looks.

        Before all tests, keep the filters of warnings: those of ``pytest_configure`` are not it, as
        a later hook may add some, and before pytest 8 there are others while it is called.
        """
        self._config.stash[SESSION].filters[:] = warnings.filters
        try:
            return (yield)
        finally:
            coverage_data = sys.modules.get("pytest_cudafork.isolate.coverage_data")
            if coverage_data is not None and not self._off:
                coverage_data.gathered(self._config).finish()

    @pytest.hookimpl(wrapper=True, trylast=True)  # what it warns of, pytest's wrapper is to record
    def pytest_sessionfinish(self) -> Generator[None, object, object]:
        """End all children before anybody counts what they have done."""
        self._running = False
        module = sys.modules.get("pytest_cudafork.isolate.session.children")
        if module is not None:  # else there were none, and the import would be for nothing
            module.close_children(self._config)
        return (yield)


_MOST_OUTPUT = 30
"""How many lines to show of what a fork server wrote that did not get ready."""
_FORKS_AHEAD = 6
"""How many tests to fork at once, before their turn: more save little, and hold memory."""
_LOOK_AHEAD = 64
"""How many tests to look at for those whose interpreters can be started ahead."""


def _is_skipped(item: pytest.Item) -> bool:
    """Whether a mark skips a test, so that it needs no process."""
    from pytest_cudafork.compat.pytest_internals import is_skipped

    try:
        return is_skipped(item)
    except (Exception, pytest.fail.Exception):  # a mark that is wrong; told when the test is set up
        return False
