"""The tools that run other packages' graph managers: how a bug is planted, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.sessions import needs_torch
from tools import foreign_managers

REPORT = """<testsuites><testsuite>
<testcase name="a"><properties><property name="manager" value="m"/>
<property name="planted" value="as published"/></properties></testcase>
<testcase name="b"><properties><property name="manager" value="m"/><property name="planted"
value="p"/><property name="told" value="x | y"/></properties><failure message="no"/></testcase>
</testsuite></testsuites>"""


class Example:
    """What bugs are planted into."""

    def method(self) -> list[int]:
        found = [1]
        found.append(2)
        found = [*found, 3]
        found.reverse()
        return found


@needs_torch
def test_statements_are_taken_out_by_the_name_that_they_call_or_set() -> None:
    from tools.foreign_manager_programs import without

    for dropped, expected in (("append", [3, 1]), ("found", None)):
        with pytest.MonkeyPatch.context() as patch:
            without(Example, "method", dropped)(patch)
            if expected is None:
                with pytest.raises(NameError):
                    Example().method()
            else:
                assert Example().method() == expected
    assert Example().method() == [3, 2, 1]
    with pytest.raises(AssertionError, match="has no other"), pytest.MonkeyPatch.context() as patch:
        without(Example, "method", "other")(patch)


def test_the_table_says_what_each_program_came_to(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT, encoding="utf-8")
    found = foreign_managers.outcomes(report)
    assert [one["outcome"] for one in found] == ["ok", "not ok"]
    assert foreign_managers.rows(found) == [
        ["m", "as published", "ok", "nothing"],
        ["m", "p", "not ok", "x \\| y"],
    ]


def test_offline_without_what_an_earlier_call_has_left_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "none"
    with pytest.raises(SystemExit) as ended:
        foreign_managers.main(["--offline", "--folder", str(folder)])
    assert ended.value.code == 2
    assert f"no earlier call has left packages in {folder}" in capsys.readouterr().err
    assert not folder.exists()
