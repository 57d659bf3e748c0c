"""The markers: their table, the reading of their arguments, the complaints about wrong ones."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_cudafork.settings.gpu_requests import GpuWish
from pytest_cudafork.settings.marker_values import MARKER_METHODS
from pytest_cudafork.settings.markers import (
    MARKERS,
    MarkerError,
    Marks,
    give_gpus,
    marks_of,
    read_marks,
)
from tests.support.sessions import assert_no_crash, module, outcomes, run_session


class Marked:
    """As much of an item as markers are read from: the closest first."""

    def __init__(self, *marks: pytest.MarkDecorator) -> None:
        self._marks = [mark.mark for mark in marks]
        self.config = SimpleNamespace(stash={}, getini=lambda name: [])

    def iter_markers(self) -> list[pytest.Mark]:
        return self._marks


def read(*marks: pytest.MarkDecorator) -> Marks:
    return read_marks(cast(pytest.Item, Marked(*marks)))


mark: Any = pytest.mark

RIGHT = {
    "none": ((), Marks()),
    "foreign": ((mark.skip(reason="x"),), Marks()),
    "spawn_only": ((mark.spawn_only,), Marks(spawn_only=True)),
    "isolated": ((mark.cuda_isolated,), Marks(isolated=True)),
    "method": ((mark.cuda_isolated(method="spawn"),), Marks(isolated=True, method="spawn")),
    "by its other name": ((mark.isolated(method="spawn"),), Marks(isolated=True, method="spawn")),
    "the closest of both names": (
        (mark.isolated(method="fork"), mark.cuda_isolated(method="spawn")),
        Marks(isolated=True, method="fork"),
    ),
    "fixtures": ((mark.isolated(fixtures="inherit"),), Marks(isolated=True, fixtures="inherit")),
    "env": ((mark.isolated(env={"A": "1"}),), Marks(isolated=True, env=(("A", "1"),))),
    "gpus of isolated": ((mark.isolated(gpus=2),), Marks(isolated=True, gpus=GpuWish(2))),
    "said as the signature has it": (
        (mark.isolated(timeout=None, gpus=None, env=None),),
        Marks(isolated=True),
    ),
    "timeout": ((mark.cuda_isolated(timeout=2),), Marks(isolated=True, timeout=2)),
    "fork_ok": ((mark.cuda_fork_ok(reason="r"),), Marks(fork_ok="r")),
    "gpus": ((mark.gpus(2, share=True),), Marks(isolated=True, gpus=GpuWish(2, share=True))),
    "gpus, spawned": (
        (mark.gpus(1, wait=3), mark.spawn_only),
        Marks(spawn_only=True, isolated=True, gpus=GpuWish(1, wait=3)),
    ),
    "captures": ((mark.check_captures(False),), Marks(check_captures=False)),
    "captures, on": ((mark.check_captures(True),), Marks(check_captures=True)),
    "graphs": ((mark.graph_capture,), Marks(graphs=("software", "cuda"))),
    "start methods": (
        (mark.start_methods("spawn", "fork"),),
        Marks(isolated=True, start_methods=("spawn", "fork")),
    ),
    "start methods, all": (
        (mark.start_methods,),
        Marks(isolated=True, start_methods=("fork", "forkserver", "spawn")),
    ),
    "graphs, one": ((mark.graph_capture(backends=["cuda"]),), Marks(graphs=("cuda",))),
    "closest wins": (
        (mark.cuda_isolated(method="fork"), mark.cuda_isolated(method="spawn", timeout=3)),
        Marks(isolated=True, method="fork"),
    ),
    "together": (
        (mark.spawn_only, mark.cuda_fork_ok(reason="r")),
        Marks(spawn_only=True, fork_ok="r"),
    ),
}
WRONG = {
    "cuda_isolated('spawn')": "takes keywords only, not ('spawn',)",
    "cuda_isolated(gpus=1, env={'CUDA_VISIBLE_DEVICES': '1'})": "on a test that is given GPUs",
    "cuda_isolated(how='spawn')": "does not take 'how'",
    "cuda_isolated(method='thread')": "method is one of auto, fork, forkserver, spawn",
    "cuda_isolated(method=['fork'])": "method is one of auto, fork, forkserver, spawn",
    "cuda_isolated(timeout=0)": "timeout is a number of seconds above 0",
    "cuda_isolated(timeout=-1.5)": "timeout is a number of seconds above 0",
    "cuda_isolated(timeout=float('nan'))": "timeout is a number of seconds above 0",
    "cuda_isolated(timeout=True)": "timeout is a number of seconds above 0",
    "cuda_isolated(timeout='1')": "timeout is a number of seconds above 0",
    "isolated('spawn')": "@pytest.mark.isolated takes keywords only, not ('spawn',)",
    "isolated(method=None)": "method is one of auto, fork, forkserver, spawn",
    "isolated(fixtures='copy')": "@pytest.mark.isolated(fixtures='copy'): fixtures is one of own",
    "cuda_isolated(fixtures='inherit', scope='module')": "cannot inherit the fixtures of each",
    "isolated(gpus=0)": "gpus is a whole number of GPUs above 0",
    "isolated(gpus=True)": "gpus is a whole number of GPUs above 0",
    "isolated(env=['A'])": "env is a dict of names and texts",
    "isolated(env={'A': 1})": "env is a dict of names and texts",
    "isolated(env={'A=B': '1'})": "env is a dict of names and texts",
    "isolated(env={'': '1'})": "env is a dict of names and texts",
    "gpus": "takes one number of GPUs, and none is given",
    "gpus(0)": "n is a whole number of GPUs above 0",
    "gpus(1, share=None)": "share is True or False",
    "gpus(1, memory=20)": "memory is a size of at least 1 MiB, in words",
    "check_captures": "takes True or False",
    "check_captures(1)": "takes True or False",
    "check_captures(on=True)": "takes True or False",
    "cuda_fork_ok": "needs a reason",
    "cuda_fork_ok()": "needs a reason",
    "cuda_fork_ok(reason='')": "reason is a text that is not empty",
    "cuda_fork_ok(reason=' ')": "reason is a text that is not empty",
    "cuda_fork_ok(reason=None)": "reason is a text that is not empty",
    "cuda_fork_ok('a reason')": "takes keywords only, not ('a reason',)",
    "graph_capture('cuda')": "takes keywords only, not ('cuda',)",
    "start_methods('thread')": "'thread' is no start method: write start_methods(",
    "start_methods(['fork'])": "['fork'] is no start method",
    "start_methods('fork', 'fork')": "names a method twice",
    "start_methods(method='fork')": "does not take 'method'",
    "graph_capture(backend='cuda')": "does not take 'backend'",
    "graph_capture(backends='cuda')": "backends is a list of one or both of software, cuda",
    "graph_capture(backends=[])": "backends is a list of one or both of software, cuda",
    "graph_capture(backends=['gpu'])": "backends is a list of one or both of software, cuda",
    "graph_capture(backends=['cuda', 'cuda'])": "backends is a list of one or both of software",
    "spawn_only(1)": "takes keywords only, not (1,)",
    "spawn_only(timeout=1)": "does not take 'timeout'",
}


@pytest.mark.parametrize("name", RIGHT)
def test_markers_are_read(name: str) -> None:
    marks, expected = RIGHT[name]
    assert read(*marks) == expected


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_marker_is_a_marker_error_that_names_it(text: str) -> None:
    made = eval(f"mark.{text}", {"mark": mark})
    with pytest.raises(MarkerError) as caught:
        read(made)
    assert WRONG[text] in str(caught.value)
    assert f"@pytest.mark.{text.partition('(')[0]}" in str(caught.value)


_anything = st.integers() | st.text() | st.none() | st.lists(st.integers())
_keywords = st.text() | st.sampled_from(["method", "timeout", "reason", "n", "share", "wait"])


def test_gpus_beside_a_variable_that_names_them_are_a_contradiction() -> None:
    with pytest.raises(MarkerError, match=r"on a test that is given GPUs, .*: leave out one"):
        read(mark.gpus(1), mark.cuda_isolated(env={"CUDA_VISIBLE_DEVICES": "1"}))


@settings(deadline=None)
@given(st.sampled_from([m.name for m in MARKERS]), st.dictionaries(_keywords, _anything))
def test_no_arguments_break_the_reading(name: str, keywords: dict[str, Any]) -> None:
    made = getattr(mark, name).with_args(**keywords)
    try:
        marks = read(made)
    except MarkerError as error:
        words = str(error)
    else:
        assert marks.method in MARKER_METHODS
        return
    assert f"@pytest.mark.{name}" in words


def test_every_advertised_keyword_is_taken() -> None:
    values: dict[str, Any] = {
        "method": "spawn",
        "timeout": 1.5,
        "scope": "module",
        "reason": "because",
        "gpus": 1,
        "fixtures": "own",
        "env": {"A": "b"},
    }
    values |= {"n": 2, "share": True, "wait": 0.5, "backends": ["software"], "memory": "1G"}
    given: dict[str, tuple[Any, ...]] = {"check_captures": (True,)}
    for marker in MARKERS:
        keywords = {key: values[key] for key in marker.keywords}
        read(getattr(mark, marker.name).with_args(*given.get(marker.name, ()), **keywords))


@pytest.mark.slow
def test_a_wrong_marker_is_an_error_of_its_test_and_of_no_other(pytester: pytest.Pytester) -> None:
    tests = [
        f"@pytest.mark.{text}\ndef test_{number}():\n    pass\n"
        for number, text in enumerate(WRONG)
    ]
    pytester.makepyfile(module("\n".join([*tests, "def test_right():\n    pass\n"])))
    for options in ((), ("--cuda-fork-check",)):
        result = run_session(pytester, "-v", "--strict-markers", *options)
        assert_no_crash(result)
        found = outcomes(result)
        assert found.pop("test_right") == "PASSED"
        assert set(found.values()) == {"ERROR"}
        assert len(found) == len(WRONG)
        for number, text in enumerate(WRONG):
            marker = f"@pytest.mark.{text.partition('(')[0]}"
            assert re.search(rf"\.py:\d+: test_{number}: {marker}", result.stdout.str())
            assert WRONG[text] in result.stdout.str()


def test_markers_are_listed_and_strict_markers_know_them(pytester: pytest.Pytester) -> None:
    result = run_session(pytester, "--markers")
    for marker in MARKERS:
        result.stdout.fnmatch_lines_random([f"@pytest.mark.{marker.name}(*"])


def test_a_test_can_be_given_gpus_that_its_markers_do_not_name(pytester: pytest.Pytester) -> None:
    item = pytester.getitem(
        "import pytest\n@pytest.mark.cuda_isolated(timeout=7)\ndef test_func(): pass"
    )
    give_gpus(item, GpuWish(2, memory=5))
    assert marks_of(item) == Marks(isolated=True, timeout=7, gpus=GpuWish(2, memory=5))
