"""Owns the children of a session: which process runs a test, and what becomes of it afterwards.

Runs in the parent. It does not choose the method, and does not know what the children report.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session.child_env import CHILD_ENV
from pytest_cudafork.isolate.session.forks import Forks
from pytest_cudafork.isolate.session.request import (
    session_request,
    target_of,
    work_order,
)
from pytest_cudafork.isolate.session.spares import Spares
from pytest_cudafork.isolate.session.zygote_handle import Blame, Zygote, loud_warning
from pytest_cudafork.process import exit_status, launch, leftovers, supervision, wire
from pytest_cudafork.process.randomness import Randomness

_MOST_RESTARTS = 4
"""Zygotes started for one session because files had to be left out or the process was lost."""

_MANY_SERVED = 100
"""Tests after which a zygote that ends has done its work, and is no sign of trouble."""
GROUP_END_SECONDS = 60.0
"""How long the teardown of a group may take that ends before its last test."""


class Companion:
    """A child that has work, or waits for more of the same group."""

    def __init__(self, running: launch.Running, method: str, sweeper: leftovers.Sweeper) -> None:
        self.supervisor = supervision.Supervisor(running, sweeper)
        self.method = method
        self.forked = method == "fork"
        self.capture_fds: list[int] = []
        """The files that hold its captured output."""
        self.waits_for: pytest.Item | None = None

    def order(self, message: wire.Message) -> None:
        """Tell it what to do."""
        self.supervisor.outbox.put(message)

    def close(self) -> None:
        """Close the files that it has shared."""
        while self.capture_fds:
            os.close(self.capture_fds.pop())


class Children:
    """The children of one pytest process."""

    def __init__(
        self, config: pytest.Config, randomness: Randomness, filters: Sequence[Any]
    ) -> None:
        self._config = config
        self._owner = os.getpid()
        self._zygote: Zygote | None = None
        self._leaving: list[Zygote] = []
        """Those that end their process."""
        self._zygotes = 0
        self._served = 0
        self._left_out: dict[str, Blame] = {}
        self._given_up: Blame | None = None
        self._targets: list[str] = []
        self._retired: list[supervision.Supervisor] = []
        self._group: Companion | None = None
        self._upcoming: Sequence[pytest.Item] = ()
        self._next_fork: pytest.Item | None = None
        self._spares = Spares(config)
        self._sweeper = leftovers.Sweeper()
        self._forks = Forks(config, randomness, filters)

    # -- the zygote ------------------------------------------------------------------------------

    @property
    def has_zygote(self) -> bool:
        """Whether a zygote was started, or given up."""
        return self._zygotes > 0

    def expect(self, targets: Sequence[str]) -> None:
        """Say what a zygote has to collect, should one be needed."""
        self._targets = list(targets)

    def start_zygote(self, targets: Sequence[str]) -> None:
        """Start the zygote, which collects ``targets``; what goes wrong is told when it is used."""
        self.expect(targets)
        self._zygotes += 1
        try:
            request = session_request(self._config, self._targets, tuple(self._left_out))
            self._zygote = Zygote(request)
        except OSError as error:
            self._given_up = Blame("", "start", f"the fork server could not be started: {error}")

    def blame(self, item: pytest.Item) -> Blame | None:
        """Return why a test cannot have a child of the zygote, or None if it can; waits for it."""
        path = str(item.path)
        while self._given_up is None and path not in self._left_out:
            if self._zygote is None:
                self.start_zygote(self._targets or [target_of(item).partition("::")[0]])
                continue
            blame = self._zygote.wait_ready()
            if blame is None:
                return None
            self._close_zygote()
            if not blame.path.endswith(".py") or self._zygotes > _MOST_RESTARTS:
                self._given_up = blame
            else:
                self._left_out[blame.path] = blame
        return self._left_out.get(path) or self._given_up

    def _from_zygote(self) -> launch.Running:
        """Return a child of the zygote, of a new one if the old is gone.

        Raises:
            ChildError: There is none to be had.

        """
        while self._zygote is not None:
            try:
                running = self._zygote.take_child()
            except EOFError:
                self._close_zygote()
            else:
                if running.has_ended and not self._zygote.is_gone:  # while it waited
                    supervision.Supervisor(running).kill()
                    self._zygote.fork_ahead()
                    continue
                if not self._zygote.is_gone:
                    self._served += 1
                    if self._served % _MANY_SERVED == 0:
                        self._zygotes = 1  # it may be replaced again
                    return running
                # the child that it had forked ahead went with it
                supervision.Supervisor(running).kill()
                self._close_zygote()
            if self._zygotes > _MOST_RESTARTS:
                break
            self.start_zygote(self._targets)
            blame = self._given_up if self._zygote is None else self._zygote.wait_ready()
            if blame is not None:
                self._close_zygote()
                raise ChildError(f"the fork server died, and there is no other: {blame.reason}")
        raise ChildError("the fork server died again and again")

    def _close_zygote(self, *, reap: bool = True) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._leaving.append(self._zygote)
            self._zygote = None
        while self._leaving and reap:
            self._leaving.pop().reap()

    # -- tests -----------------------------------------------------------------------------------

    def companion_for(
        self, item: pytest.Item, following: pytest.Item | None, method: Method
    ) -> Companion:
        """Return a child that has been told to run the test: that of its group, or a new one.

        Raises:
            ChildError: There is none to be had.
            OSError, RuntimeError: It cannot be started; RuntimeError also from the fork guard.

        """
        self._settle(wait=False)
        companion = self._group
        if companion is not None:
            self._group = None
            if companion.waits_for is not item or companion.method != method.name:
                self._end_group(companion)
                companion = None
        env = item.stash.get(CHILD_ENV, {})
        fresh = companion is None
        if companion is None:
            running = self._start(item, following, method.name, env)
            companion = Companion(running, method.name, self._sweeper)
        try:
            companion.order(work_order(item, following, env=env))
            if fresh and method.name == "forkserver" and self._zygote is not None:
                self._zygote.fork_ahead()
            self._spares.prepare(self._upcoming)
            if companion.forked:
                current = companion.supervisor.running.sock.fileno()
                self._forks.use_time_of(item, self._next_fork, [*self._descriptors(), current])
        except BaseException:  # an interrupt: nobody watches the child yet
            companion.supervisor.kill()
            companion.close()
            raise
        return companion

    def _start(
        self, item: pytest.Item, following: pytest.Item | None, method: str, env: dict[str, str]
    ) -> launch.Running:
        if method == "fork":
            return self._forks.take(item, env, self._descriptors())
        if method == "spawn":
            return self._spares.take(item, env) or self._spawn(item, following, env)
        return self._from_zygote()

    def _descriptors(self) -> list[int]:
        """Return what leads to other processes than the next child."""
        zygote = [] if self._zygote is None else self._zygote.descriptors()
        return [*zygote, *self._spares.descriptors()]

    def keep(self, companion: Companion, following: pytest.Item | None) -> None:
        """Keep a child for the next test of its group, or let go of it.

        The kernel may take a while to take it apart; nobody needs to wait for that.
        """
        if following is None:
            companion.close()
            self._retired.append(companion.supervisor)
        else:
            companion.waits_for = following
            self._group = companion

    def _end_group(self, companion: Companion) -> None:
        """Let a child tear down what its group has set up, and end; the next test is another's."""
        troubles: list[str] = []

        def take(message: wire.Message, fds: list[int]) -> supervision.Said:
            for fd in fds:
                os.close(fd)
            if message["kind"] == "internal":
                troubles.append(str(message["text"]))
            done = message["kind"] == "done"
            return supervision.Said.DONE if done else supervision.Said.MORE

        companion.order({"kind": "end"})
        ending = companion.supervisor.watch(take, GROUP_END_SECONDS, until_done=True)
        companion.close()
        if ending is None:
            self._retired.append(companion.supervisor)
        elif ending.timed_out:
            troubles.append(f"it took longer than {GROUP_END_SECONDS:.0f} s\n{ending.stacks}")
        else:
            troubles.append(f"its process {exit_status.describe(ending.exitcode)}")
        for text in troubles:
            loud_warning(pytest.PytestWarning(f"teardown of a group of isolated tests: {text}"))

    def _spawn(
        self, item: pytest.Item, following: pytest.Item | None, env: dict[str, str]
    ) -> launch.Running:
        target = target_of(item)
        if following is not None:  # the whole file
            target = target.partition("::")[0]
        return launch.start_spawn(session_request(self._config, [target]), env)

    def look_ahead(
        self, item: pytest.Item, upcoming: Sequence[pytest.Item], next_fork: pytest.Item | None
    ) -> None:
        """Say what is known of the tests that follow one: they are prepared while it runs.

        Args:
            item: The test whose turn it is.
            upcoming: Those that will be spawned soon.
            next_fork: The next one, if it will surely be forked.

        """
        self._upcoming = upcoming
        self._next_fork = next_fork
        self._forks.keep_ahead_for(item)

    def _settle(self, *, wait: bool) -> None:
        retired, self._retired = self._retired, []
        while retired:
            one = retired.pop(0)
            if not one.settle(wait=wait):
                self._retired.append(one)
        self._sweeper.sweep(now=wait)

    def end_leftovers(self) -> None:
        """End now what children have left that ended well."""
        self._sweeper.sweep(now=True)

    def close(self) -> None:
        """End everything; a process that was forked from this one only forgets it."""
        if self._owner == os.getpid():
            group, self._group = self._group, None
            if group is not None:
                self._end_group(group)
            self._forks.forget_ahead()
            self._settle(wait=True)
            self._spares.close()
        self._close_zygote(reap=False)

    def finish(self) -> None:
        """End everything, and wait until it has ended."""
        self.close()
        self._close_zygote()


CHILDREN = pytest.StashKey[Children]()


def children_of(
    config: pytest.Config,
    random_state: tuple[Any, ...] | None = None,
    filters: Sequence[Any] = (),
) -> Children:
    """Return the session's children; none is started by this, and all have ended at unconfigure.

    Args:
        config: The session's configuration.
        random_state: That of Python's generator before the user's code was imported.
        filters: Those of warnings outside every test.

    """
    children: Any = config.stash.get(CHILDREN, None)
    if children is None:
        children = config.stash[CHILDREN] = Children(config, Randomness(random_state), filters)
        config.add_cleanup(children.finish)
    return children  # type: ignore[no-any-return]


def close_children(config: pytest.Config) -> None:
    """End the session's children, if it has any."""
    children: Any = config.stash.get(CHILDREN, None)
    if children is not None:
        children.close()
