"""Tests of a body that runs with fixtures of another process; both processes are this one here."""

from __future__ import annotations

import sys
from typing import Any

import cloudpickle
import pytest

from pytest_cudafork.call import coroutines
from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.isolate.child import inherited
from pytest_cudafork.process.protocol import frames
from tests.unit.isolate.session import Heard

SOURCE = """
import pytest

SEEN = []

@pytest.fixture
def value():
    SEEN.append("set up")
    yield 1
    SEEN.append("torn down")

@pytest.fixture(autouse=True)
def around():
    SEEN.append("around")
    yield

class TestIt:
    def test_it(self, value, capsys, request):
        SEEN.append((value, self.__dict__.get("mine"), getattr(self, "shared", None)))
        print("words")
        assert capsys.readouterr().out == "words\\n"
        request.addfinalizer(lambda: SEEN.append("late"))

def test_fails(value): assert value == 2
def test_leaves_trouble(request):
    request.addfinalizer(lambda: 1 / 0)
def test_leaves_words(request):
    request.node.addfinalizer(lambda: request.node.add_report_section("teardown", "stdout", "x"))
"""


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    return {item.name: item for item in pytester.getitems(SOURCE)}


def run(item: Any, inherits: bytes | None) -> list[str]:
    """Run the protocol and return what was reported."""
    heard = Heard(item.config)
    with inherited.body_only(item, inherits):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
    item.config.pluginmanager.unregister(heard)
    return heard.calls


def sent(**parts: Any) -> bytes:
    """Return what a parent would send."""
    data: dict[str, Any] = {"values": {}, "here": [], "self": {}, "class": {}, "marks": []}
    data["path"] = data["sections"] = []
    data.update(parts)
    for name in ("values", "self", "class"):
        data[name] = {key: cloudpickle.dumps(value) for key, value in data[name].items()}
    return frames.dumps(data)


def test_marks_that_were_sent_are_marks_of_the_test(tests: dict[str, Any]) -> None:
    mark = pytest.mark.xfail(reason="late", strict=True).mark
    assert run(tests["test_fails"], sent(marks=[cloudpickle.dumps(mark)])) == ["call skipped"]


def test_the_module_search_path_is_that_of_the_fixtures(
    tests: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/here", "/both"])
    run(tests["test_fails"], sent(path=["/theirs", "/both"]))
    assert sys.path == ["/theirs", "/both", "/here"]


def test_without_an_inheritance_the_whole_test_runs(tests: dict[str, Any]) -> None:
    calls = run(tests["test_fails"], None)
    assert calls == ["start", "setup passed", "call failed", "teardown passed", "finish"]


def test_what_was_take_before_a_fork_is_used_as_it_is(tests: dict[str, Any]) -> None:
    item = tests["test_it"]
    pytest_internals.run_phase(item, "setup", log=False)
    pytest_internals.forget_finalizers(item)  # as a forked child does
    assert run(item, b"") == ["call passed"]
    assert item.module.SEEN == ["around", "set up", (1, None, None), "late"]


def test_values_that_were_sent_are_not_take_again(tests: dict[str, Any]) -> None:
    item = tests["test_it"]
    parts: dict[str, Any] = {
        "values": {"value": 7},
        "here": ["around"],
        "self": {"mine": 8},
        "class": {"shared": 9},
    }
    assert run(item, sent(**parts)) == ["call passed"]
    assert item.module.SEEN == [(7, 8, 9), "late"]
    assert run(tests["test_fails"], sent(values={"value": 2}, here=["around"])) == ["call passed"]


def test_a_fixture_that_stands_aside_says_so(tests: dict[str, Any]) -> None:
    item = tests["test_fails"]
    inherits = sent(values={"value": 2}, here=["around"])
    with inherited.body_only(item, inherits):
        plugin = next(
            one for one in item.config.pluginmanager.get_plugins() if hasattr(one, "_take")
        )
        pytest_internals.begin_request(item)
        plugin._take(item)
    assert "set up in the pytest process" in repr(item.funcargs["around"])


def test_what_cannot_be_read_is_a_failed_take(tests: dict[str, Any]) -> None:
    item = tests["test_fails"]
    data = frames.loads(sent(here=["around"]))
    data["values"]["value"] = b"no pickle"
    assert run(item, frames.dumps(data)) == ["setup failed"]


def test_trouble_of_what_the_body_leaves_is_told(tests: dict[str, Any]) -> None:
    item = tests["test_leaves_trouble"]
    pytest_internals.run_phase(item, "setup", log=False)
    pytest_internals.forget_finalizers(item)
    assert run(item, b"") == ["call passed", "teardown failed"]


def test_what_is_written_while_that_is_undone_is_told(tests: dict[str, Any]) -> None:
    item = tests["test_leaves_words"]
    pytest_internals.run_phase(item, "setup", log=False)
    assert run(item, b"") == ["call passed", "teardown passed"]


def test_the_output_of_the_set_up_is_in_the_report_of_the_body(tests: dict[str, Any]) -> None:
    item = tests["test_fails"]
    heard = Heard(item.config)
    inherits = sent(values={"value": 3}, here=["around"], sections=[["setup", "stdout", "words"]])
    assert run(item, inherits) == ["call failed"]
    assert heard.reports[0].sections == [("Captured stdout setup", "words")]


def test_a_coroutine_of_trio_has_a_run_of_its_own_after_a_fork(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(coroutines, "run_trio", lambda *call: ran.append(call))
    items: list[Any] = pytester.getitems(
        """
        import pytest
        @pytest.fixture(params=["trio", "asyncio", ("trio", {})])
        def anyio_backend(request): return request.param
        async def test_it(anyio_backend): pass
        def test_plain(anyio_backend): pass
        """
    )
    for item in items:
        pytest_internals.run_phase(item, "setup", log=False)
        for inherits in (b"", sent()):
            plugin = inherited._BodyOnly(item.config, inherits)
            done = plugin.pytest_pyfunc_call(item)
            backend = item.callspec.params["anyio_backend"]
            trio = backend != "asyncio" and not inherits and "test_it" in item.name
            assert done == (True if trio else None)
            assert ran == ([(item.obj, (), {"anyio_backend": backend})] if trio else [])
            ran.clear()
        pytest_internals.tear_down(item.session, None)
