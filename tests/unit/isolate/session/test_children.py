"""Tests of the children of a session: which process runs a test, and how long it is kept."""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest

from pytest_cudafork.compat.plugins import steps
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import children
from pytest_cudafork.isolate.session.children import Children, ItemProcess
from pytest_cudafork.isolate.session.request import COLLECTION, SPAWNED_TESTS
from pytest_cudafork.process import child, launch
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.fork_server_client import NoServerError
from pytest_cudafork.process.forking.short_stack import Steps, perform
from pytest_cudafork.process.protocol import messages
from pytest_cudafork.process.protocol.server_messages import CannotFork, ServerSettings
from pytest_cudafork.process.randomness import Randomness
from pytest_cudafork.process.supervision import Said
from pytest_cudafork.settings import METHODS
from pytest_cudafork.settings.markers import CHILD_ENV
from tests.support.isolation import is_gone
from tests.unit.isolate.session import items_of

FORK, FORKSERVER, SPAWN = (Method(name) for name in ("fork", "forkserver", "spawn"))


class _Source:
    """Where children come from; forked stand-ins, which say which tests they were told to run."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.pids: list[int] = []
        self.at_end: Callable[[Channel], None] = lambda channel: None
        self.at_the_last: Callable[[], None] = lambda: None

    def child(self, *asked: object, caretaker: Any = None) -> launch.Running:
        """Return one, and note for what."""
        self.asked.append(asked)
        running = launch.start_fork(self._serve, caretaker=caretaker)
        self.pids.append(running.pid)
        return running

    def _serve(self, channel: Channel, stacks_fd: int) -> NoReturn:
        child.prepare(stacks_fd)
        while not isinstance(order := channel.receive(), messages.End | None):
            if isinstance(order, messages.Run):
                channel.send(messages.InternalError(order.test[0][-1]))
                channel.send(messages.TestOver(last=order.next is None))
                if order.next is None:
                    self.at_the_last()
                    os._exit(0)
        self.at_end(channel)
        channel.send(messages.Done())
        os._exit(0)


class _Forks:
    """Forks of this process."""

    def __init__(self, *args: object) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.source: _Source

    def take(
        self, item: pytest.Item, env: object, private: object, *, shared: bool
    ) -> Steps[launch.Running]:
        yield from ()
        return self.source.child("fork", item, env, private)

    def use_time_of(self, *args: object) -> Steps[None]:
        yield from ()
        self.calls.append(("use_time_of", *args))

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.calls.append((name, *args))


class _Server:
    """A fork server; ``why_not`` is what each that is started finds in its way."""

    def __init__(self, settings: Callable[[], ServerSettings], **options: object) -> None:
        self.settings = settings
        self.started: list[ServerSettings] = []
        self.why_not: list[CannotFork | None] = []
        self.refuse = False
        self.lost = self.refused = ""
        self.pid: int | None = None
        self.ahead = 0
        self.closed: list[bool] = []
        self.source: _Source

    @property
    def starts(self) -> int:
        return len(self.started)

    @property
    def may_start(self) -> bool:
        return self.starts < 3

    def start(self) -> None:
        if self.refuse:
            raise OSError("no process is left")
        self.started.append(self.settings())
        self.pid = 1

    def wait_ready(self) -> CannotFork | None:
        return self.why_not.pop(0) if self.why_not else None

    def take_child(self) -> launch.Running:
        if self.lost:
            raise NoServerError(self.lost)
        return self.source.child("forkserver")

    def fork_ahead(self) -> None:
        self.ahead += 1

    def descriptors(self) -> list[int]:
        return [101]

    def close_server(self, *, reap: bool = True) -> None:
        self.closed.append(reap)
        self.pid = None


class _Spares:
    """Interpreters that are started ahead."""

    def __init__(self, config: object, caretaker: object) -> None:
        self.prepared: list[object] = []
        self.ahead: launch.Running | None = None
        self.error: BaseException | None = None
        self.is_closed = False

    def prepare(self, upcoming: object) -> None:
        self.prepared.append(upcoming)
        if self.error is not None:
            raise self.error

    def take(self, item: object, env: object) -> launch.Running | None:
        return self.ahead

    def descriptors(self) -> list[int]:
        return [102]

    def close(self) -> None:
        self.is_closed = True


class _Caretaker:
    """Who is told of children."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def begun(self, *child: object) -> None:
        self.told.append(("begun", *child))

    def over(self, *child: object) -> None:
        self.told.append(("over", *child))

    def descriptors(self) -> list[int]:
        return []

    def close(self) -> None:
        self.told.append(("closed",))


class _Stage:
    """The children of a session of three tests, and where they come from."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self.items = items
        self.children = Children(items[0].config, Randomness(), ())
        parts: Any = self.children
        self.forks, self.server, self.spares = parts._forks, parts._server, parts._spares
        self.caretaker = parts._caretaker
        self.source = self.forks.source = self.server.source = _Source()

    def run(
        self, item: pytest.Item, following: pytest.Item | None = None, method: Method = FORK
    ) -> tuple[ItemProcess, list[str]]:
        """Run a test; return the process, which was kept, and what it has said."""
        process = perform(self.children.process_for(item, following, method))
        said: list[str] = []

        def take(message: messages.Message, fds: list[int]) -> Said:
            if isinstance(message, messages.TestOver):
                return Said.DONE
            assert isinstance(message, messages.InternalError)
            said.append(message.text)
            return Said.MORE

        assert process.supervisor.watch(take, 300.0, until_done=True) is None
        self.children.keep(process, following)
        return process, said


@pytest.fixture
def stage(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Stage]:
    """Children of stand-ins."""
    monkeypatch.setattr(children, "Forks", _Forks)
    monkeypatch.setattr(children, "ForkServerClient", _Server)
    monkeypatch.setattr(children, "Spares", _Spares)
    monkeypatch.setattr(children, "Caretaker", _Caretaker)
    names = "abc"
    made = _Stage(items_of(pytester, "\n".join(f"def test_{name}(): pass" for name in names)))

    def start_spawn(
        entry: str, data: dict[str, Any], env: object, caretaker: object
    ) -> launch.Running:
        return made.source.child("spawn", entry, data["targets"], env, caretaker=caretaker)

    monkeypatch.setattr(launch, "start_spawn", start_spawn)
    yield made
    made.children.close()


def test_each_method_has_its_way() -> None:
    assert set(children._START) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_a_test_runs_in_a_real_child(
    method: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # there as here
    (item,) = items_of(pytester, "def test_it(): pass")
    real = Children(item.config, Randomness(), ())
    kinds: list[str] = []

    def take(message: messages.Message, fds: list[int]) -> Said:
        kinds.append(message.kind)
        for fd in fds:
            os.close(fd)
        return Said.DONE if isinstance(message, messages.Done) else Said.MORE

    try:
        if method == "forkserver":
            assert real.why_not_forked(item) is None
        real.look_ahead(item, [])
        process = perform(real.process_for(item, None, Method(method)))
        assert process.supervisor.watch(take, 60.0, until_done=True) is None
        real.keep(process, None)
        real.end_leftovers()
    finally:
        real.finish()
    assert kinds == ["capture", "passed", "passed", "passed", "over", "done"]


def test_a_fork_gets_the_test_its_variables_and_what_it_must_not_have(stage: _Stage) -> None:
    item, following, _ = stage.items
    item.stash[CHILD_ENV] = {"MORE": "1"}
    next_forks = [following].copy
    stage.children.look_ahead(item, [], next_forks)
    process, said = stage.run(item)
    assert said == ["test_a"]
    assert process.forked
    assert stage.source.asked == [("fork", item, {"MORE": "1"}, [101, 102])]
    name, *args, fds = stage.forks.calls[1]
    assert stage.forks.calls[0] == ("keep_ahead_for", item)
    assert (name, args) == ("use_time_of", [item, next_forks])
    assert fds[:2] == [101, 102]
    assert len(fds) == 3


def test_a_child_of_the_fork_server_is_told_its_test_and_the_next_is_forked(stage: _Stage) -> None:
    stage.server.start()
    process, said = stage.run(stage.items[0], method=FORKSERVER)
    assert said == ["test_a"]
    assert not process.forked
    assert stage.server.ahead == 1
    assert [name for name, *_ in stage.forks.calls] == []


def test_a_later_step_gets_no_process_of_its_own_and_the_first_may_begin_again(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later, other = stage.items
    function = {first: ("a",), later: ("a",), other: None}
    monkeypatch.setattr(steps, "function_of", function.get)
    stage.run(first)
    stage.run(first)
    stage.run(other)
    stage.run(other)
    with pytest.raises(ChildError, match="the function would begin anew"):
        stage.run(later)


def test_a_fork_server_that_is_lost_for_good_is_not_asked_again(stage: _Stage) -> None:
    stage.server.lost = "the fork server died 5 times"
    for _ in range(2):
        with pytest.raises(NoServerError, match="the fork server died 5 times"):
            perform(stage.children.process_for(stage.items[0], None, FORKSERVER))
        stage.server.lost = ""
    why_not = stage.children.why_not_forked(stage.items[1])
    assert why_not == CannotFork("", "lost", "the fork server died 5 times")


@pytest.mark.parametrize("whole", [False, True])
def test_an_interpreter_collects_what_it_has_to_run(stage: _Stage, whole: bool) -> None:
    item, following, _ = stage.items
    _, said = stage.run(item, following if whole else None, SPAWN)
    assert said == ["test_a"]
    ((_, entry, targets, env),) = stage.source.asked
    assert entry == SPAWNED_TESTS
    assert targets == [str(item.path) if whole else f"{item.path}::test_a"]
    assert env == {}


def test_an_interpreter_is_in_the_care_of_who_outlives_the_session(stage: _Stage) -> None:
    process, _ = stage.run(stage.items[0], None, SPAWN)
    running = process.supervisor.running
    begun = [("begun", running.cookie, pid) for pid in (0, running.pid)]
    assert stage.caretaker.told == begun
    stage.children.finish()
    assert stage.caretaker.told[2:] == [("over", running.cookie), ("closed",)]


def test_one_that_was_started_ahead_is_taken_and_others_are_prepared(stage: _Stage) -> None:
    stage.spares.ahead = stage.source.child("ahead")
    stage.children.look_ahead(stage.items[0], stage.items[1:])
    process, said = stage.run(stage.items[0], method=SPAWN)
    assert process.supervisor.running is stage.spares.ahead
    assert said == ["test_a"]
    assert stage.spares.prepared == [stage.items[1:]]


def test_the_tests_of_a_group_share_a_process(stage: _Stage) -> None:
    first, second, third = stage.items
    process, _ = stage.run(first, second)
    again, said = stage.run(second, third)
    assert again is process
    assert said == ["test_b"]
    last, _ = stage.run(third)
    assert last is process
    assert len(stage.source.pids) == 1


def test_a_group_that_ends_early_is_torn_down(stage: _Stage) -> None:
    first, second, third = stage.items
    process, _ = stage.run(first, second)
    other, said = stage.run(third)
    assert other is not process
    assert said == ["test_c"]
    stage.children.close()
    assert [is_gone(pid) for pid in stage.source.pids] == [True, True]


def test_the_next_test_of_a_group_by_another_method_has_a_process_of_its_own(
    stage: _Stage,
) -> None:
    first, second, _ = stage.items
    stage.run(first, second)
    stage.run(second, method=SPAWN)
    assert [asked[0] for asked in stage.source.asked] == ["fork", "spawn"]


def fail(channel: Channel) -> None:
    """Fail in the teardown of a group."""
    channel.send(messages.InternalError("it was not torn down"))


@pytest.mark.parametrize(
    ("at_end", "words"),
    [
        (fail, "teardown of a group of isolated tests: it was not torn down"),
        (lambda channel: os._exit(3), "its process exited with status 3"),
        (lambda channel: time.sleep(100), "(?s)it took longer than 0 s\n.*File "),
    ],
    ids=["error", "exit", "hang"],
)
def test_what_goes_wrong_in_the_teardown_of_a_group_is_warned_of(
    stage: _Stage,
    monkeypatch: pytest.MonkeyPatch,
    at_end: Callable[[Channel], None],
    words: str,
) -> None:
    monkeypatch.setattr(children, "GROUP_END_SECONDS", 0.3 if "longer" in words else 300.0)
    stage.source.at_end = at_end
    stage.run(stage.items[0], stage.items[1])
    with pytest.warns(pytest.PytestWarning, match=words):
        stage.children.close()
    assert is_gone(stage.source.pids[0])


def test_an_interrupt_before_the_child_is_watched_ends_it(stage: _Stage) -> None:
    stage.spares.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        perform(stage.children.process_for(stage.items[0], None, FORK))
    assert is_gone(stage.source.pids[0])


def test_files_of_a_childs_output_are_closed_with_it(stage: _Stage) -> None:
    process, _ = stage.run(stage.items[0], stage.items[1])
    files = os.pipe()
    process.capture_fds += [*files, -1]
    process.close()
    for fd in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


IMPORT = CannotFork("/src/conftest.py", "cuda", "CUDA is initialized")


def test_the_fork_server_is_started_when_a_test_needs_it(stage: _Stage) -> None:
    item = stage.items[0]
    assert not stage.children.has_fork_server
    assert stage.children.why_not_forked(item) is None
    assert stage.children.has_fork_server
    assert stage.children.why_not_forked(item) is None
    (settings,) = stage.server.started
    assert settings.data["targets"] == [str(item.path)]
    assert (settings.prepare, settings.fold) == (COLLECTION, True)


def test_it_collects_what_is_expected_to_need_it(stage: _Stage) -> None:
    stage.children.expect(["a.py", "b.py"])
    stage.children.why_not_forked(stage.items[0])
    assert stage.server.started[0].data["targets"] == ["a.py", "b.py"]


def test_a_file_that_it_cannot_import_is_left_out_of_the_next(stage: _Stage) -> None:
    stage.server.why_not = [IMPORT]
    assert stage.children.why_not_forked(stage.items[0]) is None
    assert [one.data["left_out"] for one in stage.server.started] == [(), (IMPORT.path,)]


def test_tests_of_a_file_that_is_left_out_cannot_have_it(stage: _Stage) -> None:
    own = CannotFork(str(stage.items[0].path), "threads", "2 threads run")
    stage.server.why_not = [own]
    assert stage.children.why_not_forked(stage.items[0]) is own
    assert stage.server.starts == 1


def test_after_some_attempts_it_is_given_up(stage: _Stage) -> None:
    why_not = [CannotFork(f"/src/{name}.py", "cuda", "initialized") for name in "abcd"]
    stage.server.why_not = list(why_not)
    assert stage.children.why_not_forked(stage.items[0]) is why_not[2]
    assert stage.children.why_not_forked(stage.items[1]) is why_not[2]
    assert stage.server.starts == 3


def test_what_no_file_is_to_blame_for_is_not_tried_again(stage: _Stage) -> None:
    why_not = CannotFork("", "start", "exited with status 1")
    stage.server.why_not = [why_not]
    assert stage.children.why_not_forked(stage.items[0]) is why_not
    assert stage.server.starts == 1


def test_one_that_cannot_be_started_is_the_reason(stage: _Stage) -> None:
    stage.server.refuse = True
    stage.children.start_fork_server(["a.py"])
    why_not = stage.children.why_not_forked(stage.items[0])
    assert why_not is not None
    assert why_not.text == "the fork server could not be started: no process is left"


def test_one_that_could_not_be_started_ahead_is_tried_again_when_it_is_needed(
    stage: _Stage,
) -> None:
    stage.server.refuse = True
    stage.children.start_fork_server(["a.py"])
    stage.server.refuse = False
    assert stage.children.why_not_forked(stage.items[0]) is None


def test_one_that_could_not_be_started_is_tried_by_each_test(stage: _Stage) -> None:
    stage.server.refuse = True
    for _ in range(10):
        assert stage.children.why_not_forked(stage.items[0]) is not None
    stage.server.refuse = False
    assert stage.children.why_not_forked(stage.items[0]) is None


def test_one_that_can_never_fork_is_given_up_after_some_attempts(stage: _Stage) -> None:
    tried: list[int] = []
    item = stage.items[0]
    for number in range(1000):
        stage.server.pid = None
        before = stage.server.starts
        if stage.children.why_not_forked(item) is None:
            stage.server.refused = "the fork server could not fork: there is no process left"
            stage.children.make_room()
        if stage.server.starts > before:
            tried.append(number)
    assert tried == [0, 1, 6]  # the stand-in may be started three times


def test_the_end_waits_for_every_child(stage: _Stage) -> None:
    stage.run(stage.items[0])
    stage.children.finish()
    assert is_gone(stage.source.pids[0])
    assert stage.spares.is_closed
    assert ("forget_ahead",) in stage.forks.calls
    assert stage.server.closed == [False, True]
    stage.children.end_leftovers()


def test_room_is_made_by_the_end_of_those_that_no_test_has(stage: _Stage) -> None:
    stage.run(stage.items[0])
    process, _ = stage.run(stage.items[1], stage.items[2])
    stage.children.make_room()
    assert is_gone(stage.source.pids[0])
    assert stage.spares.is_closed
    assert ("forget_ahead",) in stage.forks.calls
    assert not process.supervisor.running.has_ended


def test_a_child_whose_end_nobody_waited_for_is_cleared_away_before_the_next(
    stage: _Stage,
) -> None:
    stage.run(stage.items[0])
    (pid,) = stage.source.pids
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    stage.run(stage.items[1])
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def test_a_child_that_dies_after_it_was_done_is_warned_of(stage: _Stage) -> None:
    stage.source.at_the_last = os.abort
    stage.run(stage.items[0])
    words = f"the process of {stage.items[0].nodeid} had finished, but was killed by SIGABRT"
    with pytest.warns(pytest.PytestWarning, match=re.escape(words)):
        stage.children.close()


def test_a_process_that_was_forked_only_forgets_them(stage: _Stage) -> None:
    process, _ = stage.run(stage.items[0], stage.items[1])
    with warnings.catch_warnings():  # of threads, by Python 3.12 on; the inner session shows it
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        stage.children.close()
        os._exit(0 if stage.server.closed == [False] and not stage.spares.is_closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not process.supervisor.running.has_ended


def test_a_session_has_its_children_once_and_ends_them(stage: _Stage) -> None:
    config = stage.items[0].config
    children.close_children(config)  # there are none yet
    assert children.CHILDREN not in config.stash
    made = children.children_of(config)
    assert children.children_of(config) is made
    server: Any = made._server
    children.close_children(config)
    assert server.closed == [False]
    config._ensure_unconfigure()
    assert server.closed == [False, False, True]


def test_a_process_that_goes_on_by_itself_is_not_told_and_its_method_is_known(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = stage.items
    process = perform(stage.children.process_for(a, b, FORK, lambda: [c, None]))
    assert process.tests == 1
    assert process.after == [c, None]
    told: list[object] = []
    monkeypatch.setattr(process, "order", told.append)
    assert isinstance(process.due, messages.Run)  # until somebody holds signals back
    process.order_due()
    process.order_due()
    assert [type(one) for one in told] == [messages.Run]
    process.works_ahead = True
    stage.children.keep(process, b)
    assert stage.children.going_on_to(a, b) is None
    assert stage.children.going_on_to(b, None) is None  # another one follows there
    assert stage.children.going_on_to(b, c) == (FORK, c)
    sent = bool(process.supervisor.outbox)
    assert perform(stage.children.process_for(b, c, FORK)) is process
    assert (process.tests, process.after, bool(process.supervisor.outbox)) == (2, [None], sent)
    process.works_ahead = True
    stage.children.keep(process, c)
    assert stage.children.going_on_to(c, None) == (FORK, None)
    process.works_ahead = False
    assert stage.children.going_on_to(c, None) is None
    stage.children._group = None
    process.supervisor.kill()


def test_a_server_that_cannot_fork_makes_room_and_the_next_test_tries_another(
    stage: _Stage,
) -> None:
    first, second, third = stage.items
    stage.run(first)
    assert stage.children.why_not_forked(first) is None
    stage.children.make_room()
    assert not stage.server.closed
    stage.server.refused = "the fork server could not fork: there is no process left"
    stage.children.make_room()
    stage.children.make_room()  # there is none any more: nothing is counted twice
    assert stage.server.closed == [True]
    with pytest.raises(NoServerError, match="there is no process left"):
        stage.run(first, method=FORKSERVER)  # a rerun of the test that was refused
    assert stage.children.why_not_forked(second) is None
    stage.children.make_room()
    why_not = stage.children.why_not_forked(third)
    assert why_not is not None
    assert why_not.reason == stage.server.refused
