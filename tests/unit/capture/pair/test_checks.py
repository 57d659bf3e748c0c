"""The table of the checks of a pair: names, order, what each needs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.interface.check_names import CheckName  # noqa: E402
from pytest_cudafork.capture.pair import checks  # noqa: E402
from pytest_cudafork.capture.pair.checks import CHECKS, PairCheck, run_checks  # noqa: E402
from pytest_cudafork.capture.story.findings import CheckLog  # noqa: E402
from tests.support.capture_pair import Runner  # noqa: E402


def pair(*, graph: bool = True, mode: str = "FULL") -> Any:
    """Evidence of two passes, for a table without real checks."""
    x = torch.zeros(2)
    passes = SimpleNamespace(
        graph=object() if graph else None, mode=mode, captured=None, persistent=lambda _: {"x": x}
    )
    return SimpleNamespace(passes=passes, log=CheckLog(), x=x)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What ran, of a table of four rows."""
    seen: list[str] = []

    def note(name: str) -> Callable[[Any], None]:
        def run(pair: Any) -> None:
            seen.append(f"{name} {pair.x[0].item():.0f}")
            pair.x += 1

        return run

    table = (
        PairCheck("aliased-state", note("early"), needs_graph=False, conclude=note("end of early")),
        PairCheck("not-shared", note("one")),
        PairCheck("wrong-contents", note("two"), not_piecewise="a reason"),
        PairCheck("missing-kernels", note("three"), conclude=note("end of three")),
    )
    monkeypatch.setattr(checks, "CHECKS", table)
    return seen


def test_names_are_those_of_findings_each_once() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names) == 6
    assert names == [name for name in get_args(CheckName) if name in names], "as in the reference"


def test_checks_run_in_order_each_on_the_first_inputs(ran: list[str]) -> None:
    one = pair()
    run_checks(one)
    assert ran == ["early 0", "one 1", "two 1", "three 1", "end of early 2", "end of three 3"]
    assert one.x.tolist() == [1, 1], "as they were when there was a graph"


def test_without_a_graph_only_those_run_that_need_none(ran: list[str]) -> None:
    run_checks(pair(graph=False))
    assert ran == ["early 0"]


def test_a_check_that_says_nothing_of_pieces_is_listed_with_its_reason(ran: list[str]) -> None:
    one = pair(mode="PIECEWISE")
    run_checks(one)
    assert "two 1" not in ran
    assert one.log.skipped == {"wrong-contents": "mode PIECEWISE: a reason"}


def test_a_right_pair_passes_all_of_them() -> None:
    report = Runner().check().report
    assert {check.name for check in CHECKS} <= set(report.checks)
    assert report.not_checked == {}
