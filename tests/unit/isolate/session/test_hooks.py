"""Tests of the way from a test's markers and the options to its process; nothing is started."""

from __future__ import annotations

import io
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.check import start_method
from pytest_cudafork.check.session import SESSION
from pytest_cudafork.check.start_method import ProcessState
from pytest_cudafork.health.fitness import declare_unfit
from pytest_cudafork.isolate import coverage_data
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import children, hooks, run_test
from pytest_cudafork.isolate.session.children import AfterNext, NextForks, none_known
from pytest_cudafork.observe.story.stories import History
from pytest_cudafork.process.forking.short_stack import Steps
from pytest_cudafork.process.protocol.server_messages import CannotFork
from pytest_cudafork.settings import environment
from pytest_cudafork.settings.markers import DEFAULT_TIMEOUT
from tests.unit.isolate.session import items_of

SAFE, THREADED = ProcessState(), ProcessState(threads=2)
INITIALIZED = ProcessState(cuda="initialized")


class _Children:
    """The children of a session: what is asked of them."""

    def __init__(self) -> None:
        self.has_fork_server = False
        self.why_not: CannotFork | None = None
        self.calls: list[tuple[object, ...]] = []
        self.ahead: list[tuple[list[str], list[str]]] = []
        self.going_on: object = None

    def start_fork_server(self, targets: list[str]) -> None:
        self.has_fork_server = True
        self.calls.append(("start", targets))

    def expect(self, targets: list[str]) -> None:
        self.calls.append(("expect", targets))

    def why_not_forked(self, item: pytest.Item) -> CannotFork | None:
        return self.why_not

    def going_on_to(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        return self.going_on

    def look_ahead(
        self, item: pytest.Item, upcoming: list[pytest.Item], next_forks: NextForks = none_known
    ) -> None:
        self.ahead.append(([one.name for one in upcoming], [one.name for one in next_forks()]))


class _Stage:
    """Sessions whose children are stand-ins."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self._pytester = pytester
        self.children = _Children()
        self.state = SAFE
        self.isolated: list[tuple[str, Method, str | None]] = []
        """Tests that were run in a process: how, and which goes on there."""
        self.after: list[list[str | None]] = []
        """Which tests are known to follow the next one there, for each."""
        self.items: list[pytest.Item] = []

    def begin(self, source: str, *args: str) -> Any:
        """Collect the tests of a file; return the hooks."""
        source = f"import pytest\nisolated = pytest.mark.cuda_isolated\n{source}"
        self.items = items_of(self._pytester, source, *args)
        return self.config.pluginmanager.get_plugin("cudafork-isolation")

    @property
    def config(self) -> pytest.Config:
        return self.items[0].config

    def isolate(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        method: Method,
        children: object,
        following: pytest.Item | None = None,
        after: AfterNext = none_known,
    ) -> Steps[None]:
        """Take what ``run_test.isolate`` is told."""
        assert children is self.children
        name = None if following is None else following.name
        self.isolated.append((item.name, method, name))
        self.after.append([None if one is None else one.name for one in after()])
        yield from ()

    def run(self, plugin: Any) -> list[str]:
        """Ask for the protocol of every test; return the names of those left to pytest."""
        left = []
        for item, following in zip(self.items, [*self.items[1:], None], strict=True):
            if plugin.pytest_runtest_protocol(item, following) is None:
                left.append(item.name)
        return left


@pytest.fixture
def stage(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> _Stage:
    """Nothing isolated yet, in a process that is safe to fork."""
    made = _Stage(pytester)
    monkeypatch.setattr(children, "children_of", lambda *args: made.children)
    monkeypatch.setattr(start_method, "process_state", lambda watch: made.state)
    monkeypatch.setattr(run_test, "isolate", made.isolate)
    return made


PLAIN = "def test_a(): pass\ndef test_b(): pass"


# -- the fork server -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "started"),
    [
        (["--cuda-fork-isolate=forkserver"], True),
        (["--cuda-fork-isolate=forkserver", "--collect-only"], False),
        (["--cuda-fork-isolate=forkserver", "--pdb"], False),
        (["--cuda-fork-isolate=fork"], False),
        (["--cuda-fork-isolate=spawn"], False),
        ([], False),
    ],
)
def test_it_is_started_at_once_if_every_test_needs_it(
    stage: _Stage, args: list[str], started: bool
) -> None:
    stage.begin(PLAIN, *args, ".")
    assert len(stage.config.args) == 2
    assert stage.children.calls == ([("start", stage.config.args)] if started else [])


@pytest.mark.parametrize(
    ("state", "option", "started"),
    [
        (THREADED, "auto", True),
        (INITIALIZED, "auto", True),
        (SAFE, "auto", False),
        (THREADED, "fork", False),
    ],
)
def test_an_import_that_makes_this_process_unsafe_to_fork_starts_it(
    stage: _Stage, state: ProcessState, option: str, started: bool
) -> None:
    stage.state = state
    stage.begin(PLAIN, f"--cuda-fork-isolate={option}", ".")
    starts = [call for call in stage.children.calls if call[0] == "start"]
    assert starts == ([("start", stage.config.args)] if started else [])
    assert len(stage.config.args) == 2


@pytest.mark.parametrize(
    ("marker", "state", "call"),
    [
        ("isolated(method='forkserver')", SAFE, "start"),
        ("isolated()", THREADED, "start"),
        ("isolated()", SAFE, "expect"),
        ("isolated(method='fork')", THREADED, None),
        ("pytest.mark.spawn_only", THREADED, None),
    ],
)
def test_a_marker_has_it_collect_the_files_with_such_tests(
    stage: _Stage, marker: str, state: ProcessState, call: str | None
) -> None:
    stage.state = state
    stage.begin(f"@{marker}\ndef test_a(): pass\ndef test_b(): pass")
    path = str(stage.items[0].path)
    assert stage.children.calls == ([] if call is None else [(call, [path])])


@pytest.mark.parametrize("args", [["--cuda-fork-isolate=none"], ["--pdb"], ["--collect-only"]])
def test_where_nothing_is_isolated_a_marker_starts_nothing(stage: _Stage, args: list[str]) -> None:
    plugin = stage.begin("@isolated(method='forkserver')\ndef test_a(): pass", *args)
    assert stage.children.calls == []
    if args != ["--collect-only"]:
        assert stage.run(plugin) == ["test_a"]


# -- tests -----------------------------------------------------------------------------------------


def test_tests_that_nobody_asks_for_are_left_to_pytest(stage: _Stage) -> None:
    assert stage.run(stage.begin(PLAIN)) == ["test_a", "test_b"]
    assert stage.isolated == []


def test_markers_and_options_choose_the_method(stage: _Stage) -> None:
    source = (
        "def test_plain(): pass\n"
        "@isolated(method='forkserver', timeout=5)\ndef test_server(): pass\n"
        "@pytest.mark.spawn_only\ndef test_spawn(): pass\n"
        "@isolated(method=5)\ndef test_wrong(): pass\n"
    )
    plugin = stage.begin(source, "--cuda-fork-isolate=fork")
    assert stage.run(plugin) == ["test_wrong"]
    assert stage.isolated == [
        ("test_plain", Method("fork", DEFAULT_TIMEOUT), None),
        ("test_server", Method("forkserver", 5), None),
        ("test_spawn", Method("spawn", DEFAULT_TIMEOUT), None),
    ]


@pytest.mark.parametrize(("mode", "goes"), [("recover", True), ("fail", False)])
def test_after_this_process_broke_its_tests_go_to_another_one_of_their_file(
    stage: _Stage, mode: str, goes: bool
) -> None:
    plugin = stage.begin(
        f"{PLAIN}\n@isolated(method='spawn')\ndef test_marked(): pass\ndef test_c(): pass",
        f"--cuda-fork-health={mode}",
    )
    path = str(stage.items[0].path)
    assert stage.children.calls == ([("expect", [path])] if goes else [])
    assert stage.run(plugin) == ["test_a", "test_b", "test_c"]
    stage.isolated.clear()
    declare_unfit(stage.config, "t.py::x", "it is broken", recover=goes)
    assert stage.run(plugin) == ([] if goes else ["test_a", "test_b", "test_c"])
    assert [(name, method.name, following) for name, method, following in stage.isolated] == (
        [
            ("test_a", "forkserver", "test_b"),
            ("test_b", "forkserver", None),
            ("test_marked", "spawn", None),
            ("test_c", "forkserver", None),
        ]
        if goes
        else [("test_marked", "spawn", None)]
    )


def test_inside_an_isolated_test_nothing_is_isolated_again(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.ISOLATED, "1")
    assert stage.run(stage.begin(PLAIN, "--cuda-fork-isolate=fork")) == ["test_a", "test_b"]


def test_in_a_process_that_was_forked_the_hooks_do_nothing(stage: _Stage) -> None:
    plugin = stage.begin(PLAIN, "--cuda-fork-isolate=fork")
    plugin._pid += 1
    assert stage.run(plugin) == ["test_a", "test_b"]


def test_a_test_that_must_fail_is_refused_unless_a_mark_skips_it(stage: _Stage) -> None:
    stage.state = INITIALIZED
    plugin = stage.begin(
        f"{PLAIN}\n@pytest.mark.skip\ndef test_skipped(): pass\n"
        "@pytest.mark.skipif('no such name')\ndef test_wrong(): pass\n",
        "--cuda-fork-isolate=fork",
    )
    assert stage.run(plugin) == ["test_skipped"]
    assert [name for name, *_ in stage.isolated] == ["test_a", "test_b", "test_wrong"]
    assert all("Nothing was forked" in method.refusal for _, method, _ in stage.isolated)


@pytest.mark.parametrize(
    ("why_not", "reason"),
    [
        (CannotFork("", "threads", "2 threads run"), "2 threads run"),
        (
            CannotFork("/src/test_x.py", "cuda", "CUDA is initialized"),
            "after the import of test_x.py, CUDA is initialized (--cuda-fork-check names the line)",
        ),
    ],
)
def test_a_test_that_the_fork_server_cannot_run_is_spawned(
    stage: _Stage, why_not: CannotFork, reason: str
) -> None:
    stage.children.why_not = why_not
    stage.run(stage.begin("def test_a(): pass", "--cuda-fork-isolate=forkserver"))
    method = Method("spawn", DEFAULT_TIMEOUT, why=f"not forkserver: {reason}")
    assert stage.isolated == [("test_a", method, None)]


@pytest.mark.parametrize("pid", [7, 8])
def test_with_a_watch_the_line_that_touched_cuda_is_named(stage: _Stage, pid: int) -> None:
    plugin = stage.begin("def test_a(): pass", "--cuda-fork-isolate=forkserver")
    stack = [["/src/engine.py", 3, "probe", 3]]
    touch = {"k": "touch", "entry": "cuInit", "stack": stack, "pid": 7, "owner": "7", "test": ""}
    record = {"id": "1", "t": 1.0, "phase": "collect", **touch}
    watch: Any = SimpleNamespace(observer=SimpleNamespace(history=lambda: History([record])))
    stage.config.stash[SESSION].watch = watch
    reason = plugin._reason(CannotFork("", "cuda", "CUDA is initialized", pid))
    named = " (first touch: /src/engine.py:3)"
    assert reason == f"CUDA is initialized{named if pid == 7 else ''}"


def test_tests_of_a_file_with_the_same_markers_may_share_a_process(stage: _Stage) -> None:
    together = "@isolated(method='spawn', scope='module')"
    plugin = stage.begin(
        f"{together}\ndef test_a(): pass\n{together}\ndef test_b(): pass\n"
        "@isolated(method='spawn')\ndef test_c(): pass\n"
    )
    stage.run(plugin)
    assert [(name, following) for name, _, following in stage.isolated] == [
        ("test_a", "test_b"),
        ("test_b", None),
        ("test_c", None),
    ]
    assert stage.children.ahead == [([], []), (["test_c"], []), ([], [])]


SPAWNS = (
    "@pytest.mark.spawn_only\ndef test_a(): pass\n"
    "@isolated(method='fork')\ndef test_fork(): pass\n"
    "@pytest.mark.spawn_only\n@pytest.mark.gpus(1)\ndef test_gpu(): pass\n"
    "@isolated(method='spawn')\ndef test_b(): pass\n"
)


def test_tests_that_will_be_spawned_are_told_ahead(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.run(stage.begin(SPAWNS))
    assert [names for names, _ in stage.children.ahead] == [["test_b"]] * 3 + [[]]
    stage.children.ahead.clear()
    monkeypatch.setattr(hooks, "_LOOK_AHEAD", 2)
    stage.run(stage.config.pluginmanager.get_plugin("cudafork-isolation"))
    assert [names for names, _ in stage.children.ahead] == [[], ["test_b"], ["test_b"], []]


def test_in_a_worker_of_xdist_only_the_next_test_is_known(stage: _Stage) -> None:
    plugin = stage.begin(SPAWNS)
    stage.config.workerinput = {}  # type: ignore[attr-defined]
    stage.run(plugin)
    assert [names for names, _ in stage.children.ahead] == [[], [], ["test_b"], []]


@pytest.mark.parametrize(
    ("following", "state", "told"),
    [
        ("@isolated(method='fork')", SAFE, True),
        ("@isolated()", SAFE, True),
        ("@isolated()", THREADED, False),
        ("@isolated(method='fork')", THREADED, True),
        ("@isolated(method='fork')", INITIALIZED, False),
        ("@isolated(method='spawn')", SAFE, False),
        ("@isolated(method='fork')\n@pytest.mark.gpus(1)", SAFE, False),
        ("@isolated(method=5)", SAFE, False),
        ("", SAFE, False),
    ],
)
def test_the_next_test_is_told_if_it_will_surely_be_forked_too(
    stage: _Stage, following: str, state: ProcessState, told: bool
) -> None:
    stage.state = state
    plugin = stage.begin(
        f"@isolated(method='fork')\ndef test_a(): pass\n{following}\ndef test_b(): pass\n"
    )
    first, second = stage.items
    assert plugin.pytest_runtest_protocol(first, second) is True
    ((_, next_forks),) = stage.children.ahead
    assert next_forks == (["test_b"] if told else [])


FORKS = "".join(f"@isolated(method='fork')\ndef test_{name}(): pass\n" for name in "abcdefgh")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (FORKS, "bcdefg cdefgh defgh efgh fgh gh h -"),
        (FORKS.replace("'fork')\ndef test_d", "'spawn')\ndef test_d"), "bc c - - fgh gh h -"),
    ],
    ids=["alike", "spawn"],
)
def test_those_after_it_are_told_as_well_up_to_one_that_differs(
    stage: _Stage, source: str, told: str
) -> None:
    stage.run(stage.begin(source))
    found = ["".join(name[-1] for name in names) or "-" for _, names in stage.children.ahead]
    assert " ".join(found) == told


def test_of_those_that_will_share_a_process_the_first_is_told(stage: _Stage) -> None:
    shared = "@isolated(method='fork', scope='module')"
    plugin = stage.begin(
        f"@isolated(method='fork')\ndef test_a(): pass\n{shared}\ndef test_b(): pass\n"
        f"{shared}\ndef test_c(): pass\n"
    )
    stage.run(plugin)
    assert [names for _, names in stage.children.ahead] == [["test_b"], [], []]


def test_where_a_hook_has_a_say_in_between_only_the_next_one_is_told(stage: _Stage) -> None:
    class Listens:
        def pytest_runtest_logreport(self) -> None:
            pass

    plugin = stage.begin(FORKS)
    stage.config.pluginmanager.register(Listens())
    stage.run(plugin)
    assert [names for _, names in stage.children.ahead][:2] == [["test_b"], ["test_c"]]


# -- what the user sees ----------------------------------------------------------------------------


def report(item: pytest.Item, when: Any = "call", **changes: Any) -> pytest.TestReport:
    """Return a report of a test that passes."""
    made = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, when)
    vars(made).update(changes)
    return made


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ([], "PASSED"),
        (["-v"], "PASSED (spawn)"),
        (["-vv"], "PASSED (spawn: not fork: 2 threads)"),
    ],
)
def test_the_method_is_shown_as_far_as_is_wished(stage: _Stage, args: list[str], word: str) -> None:
    plugin = stage.begin(PLAIN, *args)
    config = stage.config

    def status(**changes: str) -> Any:
        made = report(stage.items[0], **changes)
        return config.hook.pytest_report_teststatus(report=made, config=config)

    assert status()[2] == "PASSED"
    isolation = {"isolation": "spawn", "isolation_why": "not fork: 2 threads"}
    assert status(**isolation) == ("passed", ".", word)
    assert status(when="teardown", **isolation) == ("", "", "")
    plugin._running = False  # the summary at the end
    assert status(**isolation)[2] == "PASSED"


def test_a_word_with_markup_keeps_it(stage: _Stage) -> None:
    plugin = stage.begin(PLAIN, "-v")
    made = report(stage.items[0], isolation="fork")
    hook = plugin.pytest_report_teststatus(made, stage.config)
    next(hook)
    with pytest.raises(StopIteration) as stop:
        hook.send(("rerun", "R", ("RERUN", {"yellow": True})))
    assert stop.value.value == ("rerun", "R", ("RERUN (fork)", {"yellow": True}))


class _Terminal:
    """The end of a session's output."""

    def __init__(self) -> None:
        self.file = io.StringIO()

    def section(self, title: str) -> None:
        self.write_line(f"== {title}")

    def write_line(self, line: str) -> None:
        self.file.write(f"{line}\n")


def summary(plugin: Any) -> list[str]:
    """Return the lines of the summary."""
    terminal = _Terminal()
    plugin.pytest_terminal_summary(terminal)
    return terminal.file.getvalue().splitlines()


def test_the_summary_counts_tests_that_were_slower_than_need_be(stage: _Stage) -> None:
    plugin = stage.begin(PLAIN)
    assert summary(plugin) == []
    slow = {"isolation": "spawn", "isolation_why": "not forkserver: x"}
    for changes in (
        slow,
        slow,
        {**slow, "isolation_why": "not forkserver: y"},
        {"isolation": "spawn"},
        {"isolation": "forkserver", "isolation_why": "not fork: 2 threads"},
    ):
        for when in ("setup", "call", "teardown"):
            plugin.pytest_runtest_logreport(report(stage.items[0], when, **changes))
    assert summary(plugin) == [
        "== isolation",
        "2 tests by spawn, not forkserver: x",
        "1 test by spawn, not forkserver: y",
    ]


def test_the_summary_shows_the_end_of_what_a_fork_server_wrote(stage: _Stage) -> None:
    output = "\n".join(f"line {number}" for number in range(40))
    stage.children.why_not = CannotFork("", "start", "exited with status 1", output=output)
    plugin = stage.begin("def test_a(): pass", "--cuda-fork-isolate=forkserver")
    stage.run(plugin)
    ((_, method, _),) = stage.isolated
    made = report(stage.items[0], "setup", isolation="spawn", isolation_why=method.why)
    plugin.pytest_runtest_logreport(made)
    lines = summary(plugin)
    assert lines[1] == "1 test by spawn, not forkserver: exited with status 1 (line 39)"
    assert lines[2:4] == ["the fork server wrote:", "    line 10"]
    assert (lines[-1], len(lines)) == ("    line 39", 33)


# -- the end ---------------------------------------------------------------------------------------


def test_what_children_have_measured_is_added_when_the_tests_are_over(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = stage.begin(PLAIN)
    finished: list[str] = []
    gathered = SimpleNamespace(finish=lambda: finished.append("finished"))
    monkeypatch.setattr(coverage_data, "gathered", lambda config: gathered)
    for ours, expected in ((True, ["finished"]), (False, [])):
        finished.clear()
        plugin._pid += not ours
        hook = plugin.pytest_runtestloop()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "outside")
            next(hook)
            assert plugin._config.stash[SESSION].filters == warnings.filters
        assert finished == []
        with pytest.raises(KeyboardInterrupt):
            hook.throw(KeyboardInterrupt())
        assert finished == expected


class _AtTheEnd:
    """Another plugin, which looks at what was done as early as it can."""

    def __init__(self, closed: list[object]) -> None:
        self._closed = closed
        self.seen: list[object] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Look."""
        self.seen = list(self._closed)


def test_at_the_end_of_the_session_all_children_end_before_others_count(
    stage: _Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[object] = []
    monkeypatch.setattr(children, "close_children", closed.append)
    manager, other = pytest.PytestPluginManager(), _AtTheEnd(closed)
    manager.register(stage.begin(PLAIN))
    manager.register(other)
    manager.hook.pytest_sessionfinish(session=None, exitstatus=0)
    assert other.seen == [stage.config]
