"""The forks of the pytest process: how it is made ready, and the one that is made ahead.

The process of a test that follows a forked one is made while that one still runs. It must not have
anything of the other test: so the filters of warnings are those of the session, what is captured
goes to files of its own, and nothing is forked ahead where something unknown may be in force around
a test (a user's wrapper of its protocol) or where fixtures live in the pytest process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.health.plugin import prepare_for_shared_processes
from pytest_cudafork.isolate import item_names
from pytest_cudafork.isolate.child import pytest_session
from pytest_cudafork.isolate.child.capture_files import capture_files, renew_files
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.isolate.session.request import INHERITED, make_basetemp
from pytest_cudafork.process import launch, supervision, termination
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.forking.freeze_before_fork import Collapse, OpenMP, freeze_in_child
from pytest_cudafork.process.forking.short_stack import Steps, Turn
from pytest_cudafork.process.randomness import Randomness
from pytest_cudafork.process.signals import ChildSignal

_MANY_FORKS = 5
_MANY_TESTS = 100
"""After so many forks, in a session of so many tests, it pays off to make forks cheaper."""
_STEPS_PER_TEST = 3
_BUSY_CORES = 2
"""The parent and the child at work have one each."""
_KNOWN = ("_pytest", "pytest_cudafork", "xdist")
"""Packages whose hooks put nothing on around a test that is not taken off again here."""


class Forks:
    """The children that are forked from this process."""

    def __init__(
        self,
        config: pytest.Config,
        randomness: Randomness,
        filters: Sequence[Any],
        sigchld: ChildSignal,
        caretaker: Caretaker | None = None,
    ) -> None:
        """Make a child get SIGCHLD back, and ``filters`` of warnings as they are when it begins."""
        self._config = config
        self._caretaker = caretaker
        self._sigchld = sigchld
        self._randomness = randomness
        self._openmp = OpenMP()
        self._reporter: Reporter | None = None
        self._filters = filters
        self._ahead: list[tuple[pytest.Item, launch.Running]] = []
        """Those that wait for the turn of their test, in that order."""
        self._count = self._cores = 0
        self._memory: Collapse | None = None

    def take(
        self, item: pytest.Item, env: dict[str, str], private: list[int], *, shared: bool = False
    ) -> Steps[launch.Running]:
        """Return a child for a test: the one forked ahead for it, if it lives, or a new one.

        Args:
            item: The test.
            env: Variables to add to its environment.
            private: Descriptors that it must not have.
            shared: Whether other tests follow in it, whose output may come while this process still
                empties the files that it would share.

        Raises:
            OSError, RuntimeError: It cannot be forked; RuntimeError from the fork guard.

        """
        if self._ahead and self._ahead[0][0] is item:
            if not self._ahead[0][1].has_ended:  # not by anything that the test did
                return self._ahead.pop(0)[1]
            self.forget_ahead()
        private = [*private, *self.descriptors()]
        return (yield from self._fork(item, env, private, ahead=False, shared=shared))

    def use_time_of(
        self, item: pytest.Item, following: Callable[[], Sequence[pytest.Item]], fds: list[int]
    ) -> Steps[None]:
        """Prepare for the next forks while a test works; ``following`` will surely be forked.

        Several are made at once: after each fork this process has to copy every page that it writes
        to, but only once for all that are made before it writes.
        """
        self._make_cheaper(len(item.session.items))
        if self._ahead:
            return
        for one in following():
            if not self._may_fork_ahead(one):
                return
            item_names.find_location(one)
            try:
                private = [*fds, *self.descriptors()]
                running = yield from self._fork(one, {}, private, ahead=True)
            except (OSError, RuntimeError):  # the test will say so in its turn
                return
            self._ahead.append((one, running))

    def keep_ahead_for(self, item: pytest.Item) -> None:
        """End the children that were forked ahead if it is another test's turn."""
        if self._ahead and self._ahead[0][0] is not item:
            self.forget_ahead()

    def forget_ahead(self) -> None:
        """End the children of tests whose turn did not come."""
        while self._ahead:
            _, running = self._ahead.pop()
            supervision.Supervisor(running).kill()

    def descriptors(self) -> list[int]:
        """Return what leads to the children that wait."""
        return [running.sock.fileno() for _, running in self._ahead]

    def _may_fork_ahead(self, item: pytest.Item) -> bool:
        # fixtures that might be torn down before it is that test's turn
        if pytest_internals.is_anything_set_up(item.session):
            return False
        return _is_known_around(item)

    def _make_cheaper(self, tests: int) -> None:
        """Fold memory, which takes time; worth it only where many forks will follow."""
        self._count += 1
        if self._count == _MANY_FORKS and tests >= _MANY_TESTS:
            self._memory = Collapse()
        for _ in range(_STEPS_PER_TEST):
            if self._memory is not None and not self._memory.done:
                self._memory.step()

    def _fork(
        self,
        item: pytest.Item,
        env: dict[str, str],
        private: Sequence[int],
        *,
        ahead: bool,
        shared: bool = False,
    ) -> Steps[launch.Running]:
        """Fork this process, made ready for it."""
        if self._reporter is None:
            self._cores = launch.usable_cores()
            make_basetemp(self._config)
            prepare_for_shared_processes(self._config)
            self._reporter = Reporter(self._config)
            # in the child that would cost half a millisecond
            self._config.pluginmanager.register(self._reporter)
        reporter = self._reporter
        self._openmp.pause()
        self._randomness.look()

        def begin() -> None:
            freeze_in_child()
            termination.forget()
            self._sigchld.end()

        def run(channel: Channel, stacks_fd: int) -> Iterator[Turn]:
            self._randomness.renew()
            if ahead or (INHERITED not in item.stash and _is_known_around(item)):
                self._use_filters_outside_tests()
            if ahead or shared:
                self._capture_apart()
            practice = ahead and self._cores > _BUSY_CORES
            return pytest_session.run_forked(
                item, env, reporter, channel, stacks_fd, practice=practice
            )

        return (yield from launch.fork_steps(run, private, begin, self._caretaker))

    def _capture_apart(self) -> None:
        """Capture into files of this process's own."""
        renew_files(capture_files(self._config))

    def _use_filters_outside_tests(self) -> None:
        """Take off what the test whose protocol this was forked in has put on, and the fork."""
        warnings.resetwarnings()  # which also makes every module look at the filters again
        warnings.filters.extend(self._filters)  # type: ignore[attr-defined]


def _is_known_around(item: pytest.Item) -> bool:
    """Whether all that is put on around a test is put on again in the child."""
    around = item.ihook.pytest_runtest_protocol.get_hookimpls()
    return all(_is_known(one.plugin) for one in around if one.hookwrapper or one.wrapper)


def _is_known(plugin: object) -> bool:
    name = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    return name.partition(".")[0] in _KNOWN
