"""Tests of a test whose body runs in a child: what is packed, and what the session hears."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import rerunfailures
from pytest_cudafork.errors import ChildError
from pytest_cudafork.isolate.policy import Method
from pytest_cudafork.isolate.session import inherit
from pytest_cudafork.isolate.session.children import children_of
from pytest_cudafork.process.forking.short_stack import perform
from pytest_cudafork.process.protocol import frames
from tests.unit.isolate.session import Heard, items_of

SOURCE = """
import os, unittest, pytest

HERE = os.getpid()

@pytest.fixture(scope="module")
def server():
    yield {"pid": os.getpid()}
    assert os.getpid() == HERE, "torn down in the wrong process"

@pytest.fixture
def unused(request):
    request.cls.shared = [1]
    return lambda: 0

class TestIt:
    constant = 3
    def setup_method(self):
        self.mine = os.getpid()
    @pytest.mark.usefixtures("unused")
    @pytest.mark.parametrize("n", [4])
    def test_body(self, server, n, capsys, tmp_path, record_property):
        record_property("where", os.getpid())
        assert (server["pid"], self.mine, n) == (HERE, HERE, 4)
        assert os.getpid() != HERE

def test_next(server): pass
def test_dies(server): os._exit(3)
def test_fails(server):
    print("words")
    assert server["pid"] == HERE
    assert os.getpid() == HERE, "elsewhere"
def test_bad(broken): pass
@pytest.fixture
def broken(): raise KeyError("in set-up")
def test_stops(server): pytest.exit("enough")
@pytest.fixture
def loud():
    print("up")
    yield
    print("down")
@pytest.fixture
def bad():
    yield
    raise KeyError("here")
def undo():
    print("undone")
    raise RuntimeError("there")
def test_leaves_trouble(loud, request): request.addfinalizer(undo)
def test_leaves_more(bad, request): request.addfinalizer(undo)
class TestUnit(unittest.TestCase):
    def test_unit(self): pass
"""
FORK = Method("fork", 300.0)


class Stage:
    """A session, and what it is told."""

    def __init__(self, pytester: pytest.Pytester, *args: str) -> None:
        self.items = {item.name: item for item in items_of(pytester, SOURCE, *args)}
        self.config = next(iter(self.items.values())).config
        self.heard = Heard(self.config)

    def run(self, name: str, following: str = "", method: Method = FORK) -> list[str]:
        """Run a test and return what was told of it."""
        self.heard.calls.clear()
        nextitem = self.items[following] if following else None
        children = children_of(self.config)
        perform(inherit.isolate_body(self.items[name], nextitem, method, children))
        return self.heard.calls


@pytest.fixture
def stage(pytester: pytest.Pytester) -> Stage:
    return Stage(pytester)


PASSED = ["start", "setup passed", "call passed", "teardown passed", "finish"]


def test_the_body_runs_elsewhere_with_the_fixtures_of_this_process(stage: Stage) -> None:
    assert stage.run("test_body[4]", "test_next") == PASSED
    call, teardown = stage.heard.reports[-2:]
    where = dict(call.user_properties)["where"]
    assert where != os.getpid()
    assert teardown.user_properties == [("where", where)]
    assert stage.run("test_next") == PASSED  # the server was not started again


def test_a_failure_comes_home_with_its_place_and_its_output(stage: Stage) -> None:
    assert stage.run("test_fails") == [*PASSED[:2], "call failed", *PASSED[3:]]
    report, teardown = stage.heard.reports[-2:]
    assert "AssertionError: elsewhere" in report.longreprtext
    assert report.sections == teardown.sections == [("Captured stdout call", "words\n")]


def test_a_death_is_a_failed_call_and_the_fixtures_are_torn_down(stage: Stage) -> None:
    assert stage.run("test_dies") == [*PASSED[:2], "call failed", *PASSED[3:]]
    assert "exit status 3 in call" in stage.heard.reports[-2].longreprtext


def test_what_the_body_has_left_to_be_undone_is_part_of_the_one_teardown(stage: Stage) -> None:
    failed = [*PASSED[:3], "teardown failed", "finish"]
    assert stage.run("test_leaves_trouble") == failed
    report = stage.heard.reports[-1]
    assert "RuntimeError: there" in report.longreprtext
    assert [text for _, text in report.sections] == ["up\n", "undone\n", "down\n"]
    assert stage.run("test_leaves_more") == failed
    report = stage.heard.reports[-1]
    assert "KeyError: 'here'" in report.longreprtext
    assert "RuntimeError: there" in dict(report.sections)["teardown in the process of the body"]


def test_a_failed_set_up_needs_no_child(stage: Stage) -> None:
    assert stage.run("test_bad") == ["start", "setup failed", "teardown passed", "finish"]


def test_a_test_can_end_the_session(stage: Stage) -> None:
    with pytest.raises(pytest.exit.Exception, match="enough"):
        stage.run("test_stops")
    assert stage.heard.calls[-1] == "finish"


def test_a_refusal_and_a_method_of_unittest_are_failed_set_ups(stage: Stage) -> None:
    method = inherit.checked(stage.items["test_unit"], FORK)
    assert "unittest" in method.refusal
    assert inherit.checked(stage.items["test_next"], FORK) == FORK
    assert stage.run("test_unit", method=method)[1] == "setup failed"


def test_set_up_only_runs_no_body(pytester: pytest.Pytester) -> None:
    stage = Stage(pytester, "--setup-only")
    assert stage.run("test_dies") == ["start", "setup passed", "teardown passed", "finish"]


@pytest.fixture
def prepared(stage: Stage) -> Any:
    """A test that is set up."""
    item = stage.items["test_body[4]"]
    assert pytest_internals.run_phase(item, "setup", log=False).passed
    return item


def test_what_is_sent_is_what_the_body_takes_and_the_process_has_not(prepared: Any) -> None:
    sent = frames.loads(inherit.pack(prepared))
    loaded = {name: pickle.loads(data) for name, data in sent["values"].items()}
    # not set up in the child, and what that returned may be looked at
    assert [loaded.pop(name) for name in list(loaded) if "xunit_setup_method" in name] == [None]
    assert loaded == {
        "server": {"pid": os.getpid()},
        "tmp_path": prepared.funcargs["tmp_path"],
    }
    assert "unused" in sent["here"]
    assert not {"n", "capsys", "request"} & {*sent["here"], *sent["values"]}
    assert pickle.loads(sent["self"]["mine"]) == os.getpid()
    assert pickle.loads(sent["class"]["shared"]) == [1]
    assert "test_body" not in sent["class"]
    prepared.add_report_section("setup", "stdout", "words")
    assert frames.loads(inherit.pack(prepared))["sections"] == [["setup", "stdout", "words"]]


@pytest.mark.parametrize("where", ["fixture", "self"])
def test_what_cannot_travel_is_refused_by_its_name(prepared: Any, where: str) -> None:
    if where == "fixture":
        prepared.funcargs["server"] = {"locks": [threading.Lock()]}
        words = r"the fixture 'server' cannot be sent .*\['locks'\]\[0\].* It is a builtins.dict"
    else:
        prepared.instance.lock = threading.Lock()
        words = "self.lock cannot be sent"
    with pytest.raises(ChildError, match=words):
        inherit.pack(prepared)


def test_the_refusal_is_an_error_of_the_test(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(item: object, marks: object) -> bytes:
        raise ChildError("the fixture 'x' cannot be sent")

    monkeypatch.setattr(inherit, "pack", refuse)
    calls = stage.run("test_next", method=Method("spawn", 300.0))
    assert calls == ["start", "setup passed", "setup failed", "teardown passed", "finish"]


def test_a_failed_run_is_done_again_as_pytest_rerunfailures_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = SimpleNamespace(get_reruns_count=lambda item: 1, get_reruns_delay=lambda item: 0)
    monkeypatch.setitem(sys.modules, "pytest_rerunfailures", plugin)
    monkeypatch.setattr(rerunfailures, "is_active", lambda config: True)
    monkeypatch.setattr(rerunfailures, "reruns_of_session", lambda config: 0)
    again = [*PASSED[:2], "call rerun", *PASSED[3:]]
    assert stage.run("test_dies") == [*again, *PASSED[:2], "call failed", *PASSED[3:]]
