"""The tool that measures test files by themselves: what it calls wrong."""

from __future__ import annotations

import importlib.util
import json

import pytest

from tests.repo.sources import Module, modules
from tests.repo.unit_files import LEAST_PERCENT, own_test_file
from tools.check_unit_coverage import Measured, measure, report

WELL = Measured("a.well", 95.0, 40, "7", 1.0)
BADLY = Measured("a.badly", LEAST_PERCENT - 0.1, 40, "7-15", 1.0)
FAILED = Measured("a.failed", 95.0, 40, "7", 1.0, "pytest ended with status 1")


@pytest.mark.parametrize(
    ("measured", "excepted", "complete", "status"),
    [
        ([WELL], {}, True, 0),
        ([BADLY, WELL], {}, True, 1),
        ([BADLY, WELL], {"a.badly": "its rest dies"}, True, 0),
        ([WELL], {"a.well": "its rest dies"}, True, 1),
        ([WELL], {"a.well": "its rest dies"}, False, 0),
        ([FAILED], {}, True, 1),
    ],
    ids=["well", "below", "excepted", "needless exception", "part of the package", "tests fail"],
)
def test_the_status_tells_what_is_below_the_limit_failed_or_needlessly_excepted(
    measured: list[Measured],
    excepted: dict[str, str],
    complete: bool,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report(measured, excepted, complete=complete) == status
    *table, last = capsys.readouterr().out.splitlines()
    assert len(table) == 1 + len(measured)
    below = [one.module for one in measured if one.percent < LEAST_PERCENT]
    assert [one["module"] for one in json.loads(last)["below"]] == below


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("coverage") is None, reason="needs coverage.py")
def test_a_module_is_measured_in_a_child_by_its_own_test_file_alone() -> None:
    (ledger,) = [module for module in modules() if module.short == "observe.base.ledger"]
    without = Module("pytest_cudafork.nowhere", ledger.path.with_name("nowhere.py"))
    assert not own_test_file(without).exists()
    by_name = {one.module: one for one in measure([ledger, without], jobs=2)}
    assert by_name["observe.base.ledger"].percent > 50
    assert by_name["observe.base.ledger"].trouble == ""
    assert by_name["nowhere"].trouble == "no tests/unit/observe/base/test_nowhere.py"
