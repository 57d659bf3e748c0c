"""Touches by the line that is to blame."""

from __future__ import annotations

import pytest

from pytest_cudafork.page.touches import programs_of, touch_groups
from pytest_cudafork.page.touches import test_of as nodeid_in
from tests.support.session_documents import check, document, process, touch


def test_touches_of_one_line_are_one_group_with_the_first_of_them() -> None:
    touches = [
        touch(3, process=1, test="a.py::a (call)"),
        touch(5, process=1),
        touch(3, process=2, test="a.py::b (call)"),
        touch(3, process=2, test="a.py::b (call)"),
        touch(3, process=3, poisoned=True),
    ]
    groups = touch_groups(document(check=check(*touches)))
    assert [len(group.all) for group in groups] == [3, 1, 1]
    assert groups[0].first is touches[0]
    assert groups[0].processes == 2
    assert groups[0].tests == ("a.py::a (call)", "a.py::b (call)")
    assert groups[2].first["poisoned"]


def test_without_the_check_there_is_none() -> None:
    assert touch_groups(document(check=None)) == []


def test_processes_of_the_plugin_are_no_programs_of_tests() -> None:
    commands = {"1": "python -c ...", "2": "python -m ...", "3": "python program.py", "4": "./gone"}
    kinds = {1: "isolated", 2: "fork server", 3: "program"}
    processes = [process(number, kind, None, 0.0, 1.0) for number, kind in kinds.items()]
    made = document(
        check=check(processes=commands), timeline={"processes": processes, "events": []}
    )
    assert programs_of(made) == {"3": "python program.py", "4": "./gone"}
    assert programs_of(document(check=None)) == {}


@pytest.mark.parametrize(
    ("words", "nodeid"),
    [
        ("a.py::a (call)", "a.py::a"),
        ("a.py::a[x (y)] (setup)", "a.py::a[x (y)]"),
        ("a.py::a", "a.py::a"),
        ("", ""),
        ("a (b", "a (b"),
    ],
)
def test_the_node_id_is_what_is_before_the_phase(words: str, nodeid: str) -> None:
    assert nodeid_in(words) == nodeid
