"""How a child runs the tests that it is told to run.

It does not matter here how the child came to have a session: it was forked with one, or made one of
its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from pytest_cudafork.check.session import SESSION
from pytest_cudafork.compat import pluggy_internals, pytest_internals, tracebacks
from pytest_cudafork.compat.unpatched import contextlib
from pytest_cudafork.health import fitness
from pytest_cudafork.health.plugin import look_after_shared_process
from pytest_cudafork.isolate import coverage_data, earlier_tests, item_names
from pytest_cudafork.isolate.child import capture_files, inherited, plugins
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.forking.short_stack import Turn, take_turns
from pytest_cudafork.process.protocol import frames, messages
from pytest_cudafork.settings import environment


class ItemServer:
    """Runs tests on demand, one after the other."""

    def __init__(
        self,
        reporter: Reporter,
        items: list[pytest.Item],
        errors: Sequence[str] = (),
        finder: item_names.Finder | None = None,
    ) -> None:
        """Take the tests of this process, and what went wrong in its collection."""
        self.coverage: coverage_data.ChildCoverage | None = None
        """What measures in this process."""
        self.environment = b""
        """What ``child.environment`` said before the fork, if it was asked."""
        self._reporter = reporter
        self._items = items
        self._errors = list(errors)
        self._finder = finder or item_names.Finder(items)
        self._session: pytest.Session | None = None

    def look_up(self) -> None:
        """Make the index of the tests now, so that no child has to."""
        if self._items:
            self._finder.find(*item_names.name_of(self._items[0]))
        for item in self._items:
            item_names.find_location(item)

    def serve(self, channel: Channel) -> None:
        """Run what the parent asks for, until it asks for nothing more or a test ends the session.

        Raises:
            FrameError: The parent sent something that is no message.

        """
        take_turns(self.turns(channel))

    def turns(self, channel: Channel) -> Iterator[Turn]:
        """Do what ``serve`` does; the protocols of the tests are for the caller to call.

        Raises:
            FrameError: The parent sent something that is no message.

        """
        reporter = self._reporter
        reporter.kept, reporter.passed = capture_files.share_capture(reporter.config, channel)
        while isinstance(order := channel.receive(), messages.Run):
            if (yield from self._run(channel, order)):
                return
        # the parent has ended a group before its last test
        if self._session is not None:
            self._tear_down(channel, self._session)

    def _run(self, channel: Channel, order: messages.Run) -> Generator[Turn, None, bool]:
        """Run one test, and those after it that it leads to; True if there is no other."""
        names = [order.test, order.next, *(order.ahead or ())]
        signs = [None] * len(names) if order.signs is None else order.signs
        surroundings = child.Surroundings(order.surroundings, self.environment)
        item, following = None, self._find(names[0])
        for number, sign in enumerate(signs[: len(names) - 1]):
            surroundings.take_over()
            self._keep_owner()
            if environment.is_set(environment.PATCHES):
                from pytest_cudafork.patch.applying.inherited import apply_inherited

                apply_inherited()
            item, following = following, self._find(names[number + 1])
            if item is None:
                found = [one.nodeid for one in self._items]
                channel.send(messages.TestMissing(found, self._errors))
                channel.send(messages.TestOver(last=True))
                return True
            first = number == 0
            position = order.position if first else None
            self._reporter.report_to(
                channel,
                position,
                sign,
                together=order.ahead is not None,
                ask_position=not first,
                leads_on=following is not None,
            )
            plugins.continue_reruns(item, order.reruns if first else None)
            if order.earlier is not None and order.earlier[number]:
                earlier_tests.enter(item, order.earlier[number], self._find)
            if order.next is not None:
                look_after_shared_process(item.config)
            with inherited.body_only(item, order.inherits):
                last = (yield from self._protocol(channel, item, following)) or following is None
            leads_on = names[number + 2 : number + 3] != []
            over = self._end(channel, item, last=last, leads_on=leads_on)
            if over.last:
                return True
            if not over.ahead:
                break
        return False

    def _keep_owner(self) -> None:
        """Let what a test starts write for this process, which looks for its errors.

        The environment is the parent's by now, which looks for those of its own tests.
        """
        session = self._reporter.config.stash.get(SESSION, None)
        if session is not None and session.watch is not None:
            environment.put(environment.OWNER, session.watch.observer.owner)

    def _find(self, name: Any) -> pytest.Item | None:
        return self._finder.find(*name) if name else None

    def _end(
        self, channel: Channel, item: pytest.Item, *, last: bool, leads_on: bool
    ) -> messages.TestOver:
        """Say that a test is over; ``leads_on`` if its order says what to do after the next."""
        session = self._session = item.session
        last = last or fitness.unfit(item.config) is not None
        passed, all_well = self._reporter.untold, self._reporter.all_well
        self._reporter.report_to(None)
        channel.leave_if_not_mine()
        measured = None if self.coverage is None else self.coverage.take()
        if measured is not None:
            channel.send(messages.Coverage(measured))
        stops = (frames.plain(session.shouldstop), frames.plain(session.shouldfail))
        wanted = all_well and not any(stops) and not channel.has_message
        ahead = leads_on and wanted and not last
        if ahead and self._reporter.kept is not None:
            self._reporter.kept.begin()  # all of it is told; the next test may die before it begins
        over = messages.TestOver(last, *stops, ahead=ahead, passed=passed)
        channel.send(over)
        return over

    def _protocol(
        self, channel: Channel, item: pytest.Item, following: pytest.Item | None
    ) -> Generator[Turn, None, bool]:
        """Have one test's protocol run; True if the session ends with it."""
        manager, hook = item.config.pluginmanager, item.ihook.pytest_runtest_protocol
        turn = Turn(
            pluggy_internals.call_of_first_result(manager, hook, item=item, nextitem=following)
        )
        yield turn
        try:
            if turn.error is None:
                return False
            raise turn.error
        except pytest.exit.Exception as stop:
            channel.send(messages.SessionStop(str(stop.msg), stop.returncode))
        except KeyboardInterrupt as interrupt:
            channel.send(_told(interrupt))
        except BaseException as error:
            channel.leave_if_not_mine()
            channel.send(messages.InternalError(child.text_of(error)))
        self._tear_down(channel, item.session)
        return True

    def _tear_down(self, channel: Channel, session: Any) -> None:
        """Tear down what no test will tear down any more."""
        channel.leave_if_not_mine()
        try:
            pytest_internals.tear_down(session, None)
        except BaseException as error:
            channel.leave_if_not_mine()
            channel.send(messages.InternalError(child.text_of(error)))


def _told(interrupt: KeyboardInterrupt) -> messages.Interrupt:
    """Return the message for a KeyboardInterrupt, with the line that raised it."""
    place = tracebacks.innermost(interrupt.__traceback__)
    return messages.Interrupt() if place is None else messages.Interrupt(str(interrupt), *place)


def run(server: ItemServer, channel: Channel) -> int:
    """Run tests in a child of the fork server: what each of them is for."""
    try:
        take_turns(server.turns(channel))
    except BaseException as error:
        channel.leave_if_not_mine()
        tell_failure(channel, error)
        return EXIT_LOST
    return 0


def tell_failure(channel: Channel, error: BaseException) -> None:
    """Tell a parent, if it is there, that pytest or this package failed, and the test is over."""
    with contextlib.suppress(OSError):
        channel.send(messages.InternalError(child.text_of(error)))
        channel.send(messages.TestOver(last=True))
