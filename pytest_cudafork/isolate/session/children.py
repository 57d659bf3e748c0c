"""The children of a session: which process runs a test, and what becomes of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat.plugins import steps
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate import live_text
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session.forks import Forks
from pytest_cudafork.isolate.session.request import (
    COLLECTION,
    SPAWNED_TESTS,
    session_request,
    target_of,
    work_order,
)
from pytest_cudafork.isolate.session.spares import Spares
from pytest_cudafork.isolate.session.without_server import WithoutServer
from pytest_cudafork.process import exit_status, launch, supervision, termination
from pytest_cudafork.process.descendants import leftovers
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.process.fork_server_client import ForkServerClient, NoServerError
from pytest_cudafork.process.forking.short_stack import Steps
from pytest_cudafork.process.loud_warning import end_loudly, loud_warning
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from pytest_cudafork.process.randomness import Randomness
from pytest_cudafork.process.signals import ChildSignal
from pytest_cudafork.settings.markers import child_env

_MOST_RESTARTS = 4
"""Servers started for one session because files had to be left out or the process was lost."""
_MOST_AHEAD = 3
"""A child takes longer to get ready than a trivial test runs."""
GROUP_END_SECONDS = 60.0
"""How long the teardown of a group may take that ends before its last test."""

AfterNext = Callable[[], "Sequence[pytest.Item | None]"]
"""Tells which tests follow the next one in the same process; ends with None if no other does."""

NextForks = Callable[[], Sequence[pytest.Item]]
"""Tells which tests come next, as far as they will surely be forked, each for itself."""


def none_known() -> tuple[()]:
    """Say that no such test is known."""
    return ()


@dataclass
class ItemProcess:
    """A child that has work, or waits for more of the same group."""

    supervisor: supervision.Supervisor
    method: Method
    test: str
    """The node id of the test that it was started for."""
    capture_fds: list[int] = field(default_factory=list)
    """The files that hold its captured output."""
    waits_for: pytest.Item | None = None
    works_ahead: bool = False
    """Whether it has gone on to that by itself."""
    after: Sequence[pytest.Item | None] = ()
    """Those that are known to follow that one; ends with None if no other does."""
    tests: int = 0
    """How many it has been given of those whose phases are told together."""
    due: messages.Message | None = None
    """What it is to be told when it is watched: by then it may have run several tests, and sent a
    signal, whose results would be lost with whoever has not begun to hold signals back."""

    @property
    def forked(self) -> bool:
        """Whether it was forked from this process."""
        return self.method.name == "fork"

    def order(self, message: messages.Message) -> None:
        """Tell it what to do."""
        self.supervisor.outbox.put(message)

    def order_due(self) -> None:
        """Tell it what it has not been told yet."""
        message, self.due = self.due, None
        if message is not None:
            self.order(message)

    def close(self) -> None:
        """Close the files that it has shared."""
        while self.capture_fds:
            fd = self.capture_fds.pop()
            if fd >= 0:
                os.close(fd)


class _Wish(NamedTuple):
    """For what a child is wanted: a test, the next of its group, variables that it is to have."""

    item: pytest.Item
    following: pytest.Item | None
    env: dict[str, str]


class _GoingOn(NamedTuple):
    """How a test runs that a child has gone on to by itself, and what follows there."""

    method: Method
    following: pytest.Item | None


class Children:
    """The children of one pytest process."""

    def __init__(
        self, config: pytest.Config, randomness: Randomness, filters: Sequence[Any]
    ) -> None:
        self._config = config
        self._owner = os.getpid()
        self._server = ForkServerClient(
            self._server_settings, outputs=True, most_starts=_MOST_RESTARTS
        )
        self._left_out: dict[str, CannotFork] = {}
        self._without = WithoutServer()
        self._targets: list[str] = []
        self._retired: list[ItemProcess] = []
        """Those that are done, and about to end."""
        self._group: ItemProcess | None = None
        self._upcoming: Sequence[pytest.Item] = ()
        self._next_forks: NextForks = none_known
        self._steps: dict[tuple[Any, ...], pytest.Item] = {}
        """Which step was the first of its function."""
        self._caretaker = Caretaker()
        self._spares = Spares(config, self._caretaker)
        self._sweeper = leftovers.Sweeper()
        self.sigchld = ChildSignal()
        """What becomes of it while a test runs in a process of its own."""
        self._forks = Forks(config, randomness, filters, self.sigchld, self._caretaker)

    # -- the fork server -------------------------------------------------------------------------

    @property
    def has_fork_server(self) -> bool:
        """Whether a fork server was started, or given up."""
        return self._server.starts > 0

    def expect(self, targets: Sequence[str]) -> None:
        """Say what a fork server has to collect, should one be needed."""
        self._targets = list(targets)

    def start_fork_server(self, targets: Sequence[str]) -> None:
        """Start the server, which collects ``targets``; what goes wrong is told when it is used."""
        self.expect(targets)
        try:
            self._server.start()
        except OSError as error:
            self._without.for_this_test(f"the fork server could not be started: {error}")

    def why_not_forked(self, item: pytest.Item) -> CannotFork | None:
        """Return why a test cannot have a child of the fork server, or None; waits for it."""
        path = str(item.path)
        why = self._without.for_next_test()
        while why is None and path not in self._left_out:
            if self._server.pid is None:
                self.start_fork_server(self._targets or [target_of(item).partition("::")[0]])
                why = self._without.reason
                continue
            why_not = self._server.wait_ready()
            if why_not is None:
                return None
            self._server.close_server()
            if not why_not.path.endswith(".py") or not self._server.may_start:
                why = self._without.for_good(why_not)
            else:
                self._left_out[why_not.path] = why_not
        return self._left_out.get(path) or why

    def _server_settings(self) -> ServerSettings:
        request = session_request(self._config, self._targets, tuple(self._left_out))
        return ServerSettings(
            prepare=COLLECTION,
            data=request,
            most_ahead=_MOST_AHEAD,
            fold=True,
            preparing="while it collected",
        )

    # -- one method each: see ``_START`` -----------------------------------------------------------

    def by_fork(self, wish: _Wish) -> Steps[launch.Running]:
        """Return a child that is forked from this process."""
        shared = wish.following is not None
        private = self._descriptors()
        return (yield from self._forks.take(wish.item, wish.env, private, shared=shared))

    def by_fork_server(self, wish: _Wish) -> Steps[launch.Running]:
        """Return a child of the fork server, of a new one if the old is gone.

        Raises:
            NoServerError, ForkRefusedError: It gives none; a fresh interpreter can do the same.
            ChildError: There is none to be had.

        """
        yield from ()  # it is the server that forks
        if self._without.reason is not None:
            raise NoServerError(self._without.reason.reason)
        try:
            return self._server.take_child()
        except NoServerError as error:
            self._without.for_good(CannotFork("", "lost", str(error)))
            raise

    def by_spawn(self, wish: _Wish) -> Steps[launch.Running]:
        """Return a fresh interpreter: the one that was started ahead for the test, or a new one."""
        yield from ()  # nothing is forked
        ahead = self._spares.take(wish.item, wish.env)
        if ahead is not None:
            return ahead
        target = target_of(wish.item)
        if wish.following is not None:  # the whole file
            target = target.partition("::")[0]
        request = session_request(self._config, [target])
        return launch.start_spawn(SPAWNED_TESTS, request, wish.env, self._caretaker)

    # -- tests -----------------------------------------------------------------------------------

    def process_for(
        self,
        item: pytest.Item,
        following: pytest.Item | None,
        method: Method,
        after: AfterNext = none_known,
    ) -> Steps[ItemProcess]:
        """Return a child for a test: that of its group, or a new one.

        It has been told to run the test, or is to be told when it is watched (``order_due``).

        Raises:
            NoServerError, ForkRefusedError: It is to be a child of the fork server, which gives
                none.
            ChildError: There is none to be had.
            OSError, RuntimeError: It cannot be started; RuntimeError also from the fork guard.

        """
        self._settle(wait=False)
        process = self._group
        if process is not None:
            self._group = None
            if process.waits_for is not item or process.method.name != method.name:
                self._end_group(process)
                process = None
            elif process.works_ahead:
                process.tests += 1
                process.after = process.after[1:]
                return process
        env = child_env(item)
        known = after()
        short = following is None and not live_text.is_direct(item.config)
        order = work_order(item, following, known, env=env, short=short)
        fresh = process is None
        if process is None:
            self._begin_steps(item)
            running = yield from _START[method.name](self, _Wish(item, following, env))
            supervisor = supervision.Supervisor(running, self._sweeper)
            process = ItemProcess(supervisor, method, item.nodeid)
        process.after = known
        # only those whose order says so count their tests (see ``passed_phases``)
        if known:
            process.tests += 1
            if process.tests == 1:
                process.supervisor.held = termination.held_back()
        try:
            if known:
                process.due = order
            else:
                process.order(order)
            yield from self._prepare_next(item, process, fresh=fresh)
        except BaseException:  # an interrupt: nobody watches the child yet
            process.supervisor.kill()
            process.close()
            raise
        return process

    def _prepare_next(self, item: pytest.Item, process: ItemProcess, *, fresh: bool) -> Steps[None]:
        """Prepare processes of the tests to come, while that of this one begins."""
        if fresh and process.method.name == "forkserver":
            self._server.fork_ahead()
        self._spares.prepare(self._upcoming)
        if process.forked:
            current = process.supervisor.running.sock.fileno()
            others = [*self._descriptors(), current]
            yield from self._forks.use_time_of(item, self._next_forks, others)

    def _begin_steps(self, item: pytest.Item) -> None:
        """Refuse a new process for a step of pytest-steps: what it goes on with is in another."""
        function = steps.function_of(item)
        if function is not None and self._steps.setdefault(function, item) is not item:
            raise ChildError(
                "it is a step of a function whose steps before were run in another process, which "
                "has ended, and the function would begin anew"
            )

    def going_on_to(self, item: pytest.Item, nextitem: pytest.Item | None) -> _GoingOn | None:
        """Return how a test runs that its process has gone on to by itself; None if none has."""
        process = self._group
        if process is None or not process.works_ahead or process.waits_for is not item:
            return None
        if not process.after:
            return None
        following = process.after[0]
        if following is not None and following is not nextitem:
            return None
        return _GoingOn(process.method, following)

    def _descriptors(self) -> list[int]:
        """Return what leads to other processes than the next child; its start knows the rest."""
        return [fd for part in (self._server, self._spares) for fd in part.descriptors()]

    def keep(self, process: ItemProcess, following: pytest.Item | None) -> None:
        """Keep a child for the next test of its group, or let go of it.

        The kernel may take a while to take it apart; nobody needs to wait for that.
        """
        if following is None:
            process.close()
            self._retired.append(process)
        else:
            process.waits_for = following
            self._group = process

    def _end_group(self, process: ItemProcess) -> None:
        """Let a child tear down what its group has set up, and end; the next test is another's."""
        troubles: list[str] = []

        def take(message: messages.Message, fds: list[int]) -> supervision.Said:
            for fd in fds:
                os.close(fd)
            if isinstance(message, messages.InternalError):
                troubles.append(message.text)
            done = isinstance(message, messages.Done)
            return supervision.Said.DONE if done else supervision.Said.MORE

        process.order(messages.End())
        ending = process.supervisor.watch(take, GROUP_END_SECONDS, until_done=True)
        process.close()
        if ending is None:
            self._retired.append(process)
        elif ending.timed_out:
            troubles.append(f"it took longer than {GROUP_END_SECONDS:.0f} s\n{ending.stacks}")
        else:
            troubles.append(f"its process {exit_status.describe(ending.exitcode)}")
        for text in troubles:
            loud_warning(pytest.PytestWarning(f"teardown of a group of isolated tests: {text}"))

    def look_ahead(
        self, item: pytest.Item, upcoming: Sequence[pytest.Item], next_forks: NextForks = none_known
    ) -> None:
        """Say what is known of the tests that follow one: they are prepared while it runs.

        Args:
            item: The test whose turn it is.
            upcoming: Those that will be spawned soon.
            next_forks: Tells which come next, if they will surely be forked.

        """
        self._upcoming = upcoming
        self._next_forks = next_forks
        self._forks.keep_ahead_for(item)

    def _settle(self, *, wait: bool) -> None:
        """Clear away the processes that are done; tell of those whose end was not as it should."""
        retired, self._retired = self._retired, []
        while retired:
            one = retired.pop(0)
            if not one.supervisor.settle(wait=wait):
                self._retired.append(one)
            elif one.supervisor.trouble:
                text = f"the process of {one.test} had finished, but {one.supervisor.trouble}"
                loud_warning(pytest.PytestWarning(text))
        end_loudly(lambda: self._sweeper.sweep(now=wait))

    def make_room(self) -> None:
        """End the processes that no test has yet, or has any more, and what they have left."""
        if self._server.refused and self._server.pid is not None:  # it takes room, and forks none
            last = not self._server.may_start
            self._without.for_some_tests(self._server.refused, last=last)
            self._server.close_server()
        self._forks.forget_ahead()
        self._settle(wait=True)
        self._spares.close()

    def end_leftovers(self) -> None:
        """End now what children have left that ended well."""
        end_loudly(lambda: self._sweeper.sweep(now=True))

    def close(self) -> None:
        """End everything; a process that was forked from this one only forgets it."""
        if self._owner == os.getpid():
            group, self._group = self._group, None
            if group is not None:
                self._end_group(group)
            self.make_room()
        self._caretaker.close()
        self._server.close_server(reap=False)

    def finish(self) -> None:
        """End everything, and wait until it has ended."""
        self.close()
        self._server.close_server()


_START: Mapping[str, Callable[[Children, _Wish], Steps[launch.Running]]] = {
    "fork": Children.by_fork,
    "forkserver": Children.by_fork_server,
    "spawn": Children.by_spawn,
}
"""How each method of isolation (``settings.METHODS``) comes by a child."""

CHILDREN = pytest.StashKey[Children]()


def children_of(config: pytest.Config) -> Children:
    """Return the session's children; none is started by this, and all have ended at unconfigure."""
    children: Any = config.stash.get(CHILDREN, None)
    if children is None:
        session = config.stash[SESSION]
        randomness = Randomness(session.random_state)
        children = config.stash[CHILDREN] = Children(config, randomness, session.filters)
        config.add_cleanup(children.finish)
    return children  # type: ignore[no-any-return]


def close_children(config: pytest.Config) -> None:
    """End the session's children, if it has any."""
    children: Any = config.stash.get(CHILDREN, None)
    if children is not None:
        children.close()
