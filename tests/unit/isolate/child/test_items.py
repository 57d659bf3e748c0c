"""Tests of how a child runs its tests, in this process: its channel is one end of a socket here."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_cudafork.health import fitness
from pytest_cudafork.isolate import earlier_tests, item_names
from pytest_cudafork.isolate.child import items as child_items
from pytest_cudafork.isolate.child import plugins
from pytest_cudafork.isolate.child.items import ItemServer
from pytest_cudafork.isolate.child.reporter import Reporter
from pytest_cudafork.isolate.passed_phases import expected_sign, reports_of
from pytest_cudafork.process import child
from pytest_cudafork.process.channel import EXIT_LOST, Channel
from pytest_cudafork.process.forking.short_stack import Turn
from pytest_cudafork.process.protocol import caught_warnings, frames, messages
from tests.support.peer import Peer, of_kind

INTERRUPTS = 'def test_interrupts(): raise KeyboardInterrupt("by hand")'
SOURCE = f"""
import pytest, warnings

SEEN = []

@pytest.fixture(scope="module")
def shared():
    SEEN.append("set up")
    yield
    SEEN.append("torn down")

@pytest.fixture(scope="module")
def never_torn_down():
    yield
    raise ValueError("broken teardown")

def test_passes(shared): SEEN.append("passes")
def test_fails(shared): assert 0, "this one"
@pytest.mark.filterwarnings("always")
def test_warns(): warnings.warn("look here", FutureWarning)
def test_exits(): pytest.exit("enough", 7)
{INTERRUPTS}
def test_breaks(): pass
def test_prints(): print("printed")
def test_leaves_something(never_torn_down): pass
"""

# pytest 7.4 leaves the fixtures of a module to the end of a session that a test has stopped.
_STOP_TEARS_DOWN = "shouldfail" in inspect.getsource(runtestprotocol)


@pytest.fixture
def peer() -> Iterator[Peer]:
    """The parent."""
    made = Peer()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the sessions here load no plugin that happens to be installed: that takes a second."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("pytest_timeout", "pytest_rerunfailures"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "argv", list(sys.argv))


@pytest.fixture
def tests(pytester: pytest.Pytester) -> dict[str, pytest.Item]:
    """The tests of a session that has collected, by name."""
    return {item.name: item for item in pytester.getitems(SOURCE)}


@pytest.fixture
def seen(tests: dict[str, Any]) -> list[str]:
    """What the tests have noted."""
    noted: list[str] = tests["test_passes"].module.SEEN
    return noted


Serve = Callable[..., list[Any]]


@pytest.fixture
def reporter(tests: dict[str, pytest.Item]) -> Reporter:
    """The reporter of the session, in force."""
    session = tests["test_passes"].session
    made = Reporter(session.config)
    session.config.pluginmanager.register(made)
    made.take_over(session)
    return made


@pytest.fixture
def serve(tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer) -> Serve:
    """Serve orders for these tests, the last one followed by none; return what is said."""

    def run(*names: str, following: str | None = None, more: Any = None) -> list[Any]:
        server = ItemServer(reporter, list(tests.values()))
        if more is not None:
            more(server)
        pairs = zip(names, [*names[1:], following], strict=True) if names else ()
        peer.orders(*[_order(tests[one], after and tests[after]) for one, after in pairs])
        server.serve(peer.channel)
        return peer.said()

    return run


def _order(item: pytest.Item, following: Any = None, **more: Any) -> messages.Run:
    given = {
        "test": list(item_names.name_of(item)),
        "next": following and list(item_names.name_of(following)),
        "surroundings": child.surroundings({}),
        "position": None,
        "reruns": None,
        **more,
    }
    return messages.Run(**given)


def _outcomes(said: list[Any]) -> list[tuple[str, str]]:
    return [(one.data["when"], one.data["outcome"]) for one in of_kind(said, messages.Report)]


PASSED = [("setup", "passed"), ("call", "passed"), ("teardown", "passed")]


def test_a_test_is_run_and_its_reports_are_told_as_they_come(serve: Serve, seen: list[str]) -> None:
    said = serve("test_passes")
    assert isinstance(said.pop(0), messages.CaptureFiles)  # for what a crash leaves
    assert _outcomes(said) == PASSED
    assert said[-1] == messages.TestOver(last=True)
    assert len(said) == 4
    assert seen == ["set up", "passes", "torn down"]


def test_what_the_next_test_needs_stays_set_up(serve: Serve, seen: list[str]) -> None:
    said = serve("test_passes", "test_fails")
    first, second = of_kind(said, messages.TestOver)
    assert (first.last, second.last) == (False, True)
    assert _outcomes(said) == [*PASSED, PASSED[0], ("call", "failed"), PASSED[2]]
    assert "this one" in str(of_kind(said, messages.Report)[4].data["longrepr"])
    assert seen == ["set up", "passes", "torn down"]


def test_a_group_that_ends_before_its_last_test_is_torn_down(serve: Serve, seen: list[str]) -> None:
    said = serve("test_passes", following="test_fails")
    assert said[-1] == messages.TestOver(last=False)
    assert seen[-1] == "torn down"


def test_a_process_that_is_unfit_runs_no_other_test(
    serve: Serve, tests: dict[str, pytest.Item]
) -> None:
    class Finds:
        def pytest_runtest_teardown(self, item: pytest.Item) -> None:
            fitness.declare_unfit(item.config, item.nodeid, "it is broken", recover=True)

    tests["test_passes"].config.pluginmanager.register(Finds())
    said = serve("test_passes", "test_fails")
    assert of_kind(said, messages.TestOver) == [messages.TestOver(last=True)]
    assert _outcomes(said) == PASSED


def test_a_teardown_that_fails_then_is_told(serve: Serve) -> None:
    said = serve("test_leaves_something", following="test_passes")
    assert said[-2] == messages.TestOver(last=False)
    assert "ValueError: broken teardown" in said[-1].text


def test_a_parent_that_wants_nothing_is_left(serve: Serve, seen: list[str]) -> None:
    assert of_kind(serve(), messages.TestOver) == []
    assert seen == []


def test_a_warning_of_a_test_is_told(serve: Serve) -> None:
    (warning,) = of_kind(serve("test_warns"), messages.CaughtWarning)
    assert (warning.type, warning.text) == (
        caught_warnings.pack(_warning("look here", FutureWarning)).type,
        "look here",
    )


def _warning(text: str, category: type[Warning]) -> warnings.WarningMessage:
    return warnings.WarningMessage(category(text), category, "test_a.py", 1)


@pytest.mark.parametrize("name", ["test_exits", "test_interrupts"])
def test_a_test_that_ends_the_session_ends_it_in_the_parent(
    name: str, tests: dict[str, pytest.Item], serve: Serve, seen: list[str]
) -> None:
    message: messages.Message = messages.SessionStop("enough", 7)
    if name == "test_interrupts":
        path, line = str(tests[name].path), SOURCE.strip().splitlines().index(INTERRUPTS) + 1
        message = messages.Interrupt("by hand", path, line)
    said = serve("test_passes", name, "test_fails")
    assert said[-2] == message
    assert said[-1].last
    assert len(of_kind(said, messages.TestOver)) == 2  # the third was not run
    assert seen[-1] == "torn down"


def test_an_error_in_a_plugin_is_told_and_ends_it(
    serve: Serve, tests: dict[str, pytest.Item], seen: list[str]
) -> None:
    class Broken:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(self, item: pytest.Item) -> None:
            if item.name == "test_breaks":
                raise RuntimeError("a broken plugin")

    tests["test_breaks"].config.pluginmanager.register(Broken())
    said = serve("test_passes", "test_breaks", "test_fails")
    assert "RuntimeError: a broken plugin" in said[-2].text
    assert isinstance(said[-2], messages.InternalError)
    assert said[-1].last
    assert seen[-1] == "torn down"


def test_what_the_session_is_told_to_stop_for_is_told(
    serve: Serve, tests: dict[str, pytest.Item]
) -> None:
    class Stops:
        def pytest_runtest_call(self, item: pytest.Item) -> None:
            item.session.shouldstop = "a reason"

    tests["test_passes"].config.pluginmanager.register(Stops())
    assert serve("test_passes")[-1] == messages.TestOver(True, shouldstop="a reason")


def test_a_test_that_is_not_there_is_told_with_those_that_are(
    tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer
) -> None:
    server = ItemServer(reporter, [tests["test_passes"]], ["cannot be collected"])
    peer.orders(_order(tests["test_fails"]), _order(tests["test_passes"]))
    server.serve(peer.channel)
    _, missing, over = peer.said()
    assert missing.found == [tests["test_passes"].nodeid]
    assert missing.errors == ["cannot be collected"]
    assert over.last


def test_its_world_and_the_terminals_place_are_the_parents(
    tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CHILD", "1")
    surroundings = child.surroundings({})
    monkeypatch.delenv("OF_THE_CHILD")
    taken: list[Any] = []

    class Noted(child.Surroundings):
        def __init__(self, *args: Any) -> None:
            taken.append(args)

        def take_over(self) -> None:
            taken.append("now")

    monkeypatch.setattr(child, "Surroundings", Noted)
    server = ItemServer(reporter, list(tests.values()))
    server.environment = b"before the fork"
    told: list[Any] = []
    monkeypatch.setattr(plugins, "continue_reruns", lambda config, reruns: told.append(reruns))
    position = {"at": "where it stands", "line": "text"}
    more = {"surroundings": surroundings, "position": position, "reruns": {"runs": 1}}
    peer.orders(_order(tests["test_warns"], **more))
    server.serve(peer.channel)
    assert taken == [(surroundings, b"before the fork"), "now"]
    assert told == [{"runs": 1}]
    terminal: Any = tests["test_warns"].config.pluginmanager.get_plugin("terminalreporter")
    assert terminal.currentfspath == "where it stands"


@pytest.mark.parametrize("data", [None, {"lines": [], "arcs": [], "tracers": {}}])
def test_what_was_measured_is_told_before_the_test_is_over(
    serve: Serve, data: dict[str, Any] | None
) -> None:
    def measure(server: ItemServer) -> None:
        coverage: Any = SimpleNamespace(take=lambda: data)
        server.coverage = coverage

    *_, last_but_one, over = serve("test_warns", more=measure)
    assert isinstance(over, messages.TestOver)
    if data is None:
        assert not isinstance(last_but_one, messages.Coverage)
    else:
        assert last_but_one == messages.Coverage(data)


def test_tests_can_be_looked_up_before(tests: dict[str, pytest.Item], reporter: Reporter) -> None:
    finder = item_names.Finder(list(tests.values()))
    ItemServer(reporter, list(tests.values()), finder=finder).look_up()
    assert finder._by_name is not None
    assert all("location" in vars(item) for item in tests.values())  # pytest keeps it there
    ItemServer(reporter, []).look_up()  # a session without tests


def test_a_kind_of_test_without_a_place_is_left_for_its_turn(
    tests: dict[str, pytest.Item], reporter: Reporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = list(tests.values())[:2]
    monkeypatch.setattr(first, "reportinfo", lambda: 1 / 0)
    ItemServer(reporter, [first, second]).look_up()
    assert "location" not in vars(first)
    assert "location" in vars(second)


@pytest.mark.parametrize("stop", [{}, {"shouldstop": "enough"}, {"shouldfail": "stopping"}])
def test_a_test_that_may_stop_the_session_asks_before_its_teardown(
    tests: dict[str, pytest.Item], peer: Peer, stop: dict[str, Any]
) -> None:
    leaves, passes = tests["test_leaves_something"], tests["test_passes"]
    reporter = Reporter(leaves.config)
    leaves.config.pluginmanager.register(reporter)
    reporter.take_over(leaves.session)
    peer.orders(_order(leaves, passes), messages.Shown(), messages.Shown(**stop))
    ItemServer(reporter, list(tests.values())).serve(peer.channel)
    said = peer.said()
    assert [one.wait for one in of_kind(said, messages.Report)] == [True, True, False]
    is_last = stop and _STOP_TEARS_DOWN
    last = "failed" if is_last else "passed"
    assert _outcomes(said) == [("setup", "passed"), ("call", "passed"), ("teardown", last)]
    assert len(of_kind(said, messages.InternalError)) == (0 if is_last else 1)


def test_with_a_terminal_of_its_own_each_report_waits_until_it_is_shown(
    tests: dict[str, pytest.Item], peer: Peer
) -> None:
    session = tests["test_warns"].session
    session.config.option.capture = "no"
    reporter = Reporter(session.config)
    session.config.pluginmanager.register(reporter)
    reporter.take_over(session)
    peer.orders(_order(tests["test_warns"]), *[messages.Shown()] * 3)
    ItemServer(reporter, list(tests.values())).serve(peer.channel)
    said = peer.said()
    assert [one.wait for one in of_kind(said, messages.Report)] == [True] * 3
    assert peer.channel.receive() is None  # each was waited for


def test_what_is_remembered_of_earlier_tests_is_entered_before_a_test(
    tests: dict[str, pytest.Item],
    reporter: Reporter,
    peer: Peer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[Any] = []

    def enter(item: pytest.Item, packed: Any, find: Callable[[Any], Any]) -> None:
        entered.append((item.name, packed, find(item_names.name_of(tests["test_fails"])).name))

    monkeypatch.setattr(earlier_tests, "enter", enter)
    first, last = tests["test_passes"], tests["test_breaks"]
    peer.orders(_order(first, last, earlier=[{"by": 1}, {}]), _order(last, earlier=[{}, {}]))
    ItemServer(reporter, list(tests.values())).serve(peer.channel)
    assert entered == [("test_passes", {"by": 1}, "test_fails")]


def _run(peer: Peer, serve: Callable[[Channel], None]) -> int:
    def turns(channel: Channel) -> Iterator[Turn]:
        serve(channel)
        yield from ()

    server: Any = SimpleNamespace(turns=turns)
    return child_items.run(server, peer.channel)


def test_the_job_of_a_child_of_the_fork_server_is_to_serve(peer: Peer) -> None:
    channels: list[Channel] = []
    assert _run(peer, channels.append) == 0
    assert channels == [peer.channel]
    assert peer.said() == []


def _fail(channel: Channel) -> None:
    raise frames.FrameError("no message")


def test_a_job_that_fails_is_told(peer: Peer) -> None:
    assert _run(peer, _fail) == EXIT_LOST
    error, over = peer.said()
    assert "FrameError: no message" in error.text
    assert "in _fail" in error.text
    assert over == messages.TestOver(last=True)


def test_where_the_parent_is_gone_nobody_is_told(peer: Peer) -> None:
    peer.leave()
    assert _run(peer, _fail) == EXIT_LOST


def _ahead(tests: dict[str, pytest.Item], *names: str | None) -> messages.Run:
    """An order that names all of these."""
    items = [None if name is None else tests[name] for name in names]
    named = [None if one is None else list(item_names.name_of(one)) for one in items]
    signs = [None if one is None else expected_sign(one) for one in items]
    first, following = items[:2]
    assert first is not None
    return _order(first, following, ahead=named[2:], signs=signs)


def _serve(reporter: Reporter, tests: dict[str, pytest.Item], peer: Peer, *orders: Any) -> Any:
    peer.orders(*orders)
    ItemServer(reporter, list(tests.values())).serve(peer.channel)
    return peer.said()


def test_tests_that_pass_are_told_with_their_end_and_lead_to_the_next(
    tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer
) -> None:
    # the peer says at once that there are no more, which is looked for before each of them
    order = _ahead(tests, "test_passes", "test_passes", None)
    said = _serve(reporter, tests, peer, order)
    (over,) = of_kind(said, messages.TestOver)
    assert of_kind(said, messages.Report) == []
    assert not over.ahead  # the parent has said something
    phases = reports_of(tests["test_passes"], over.passed)
    assert [one.when for one in phases] == ["setup", "call", "teardown"]


def test_the_phases_of_one_test_are_told_one_by_one_and_in_short(
    tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer
) -> None:
    item = tests["test_passes"]
    said = _serve(reporter, tests, peer, _order(item, None, signs=[expected_sign(item), None]))
    kinds = [one.kind for one in said if not isinstance(one, messages.CaptureFiles)]
    assert kinds == ["passed", "passed", "passed", "over"]
    told = [reports_of(item, one.phases) for one in of_kind(said, messages.Passed)]
    assert [one.when for (one,) in told] == ["setup", "call", "teardown"]
    (over,) = of_kind(said, messages.TestOver)
    assert over.passed == b""


def test_what_is_not_as_expected_is_told_in_its_order(
    tests: dict[str, pytest.Item], reporter: Reporter, peer: Peer
) -> None:
    order = _ahead(tests, "test_warns", "test_passes", None)
    said = _serve(reporter, tests, peer, order)
    kinds = [one.kind for one in said if not isinstance(one, messages.CaptureFiles)]
    assert kinds[:2] == ["passed", "warning"]
