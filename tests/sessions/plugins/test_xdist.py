"""Isolated tests with pytest-xdist."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from tests.support.isolation import METHODS
from tests.support.isolation_compare import Seen, Sessions, differences
from tests.support.isolation_plugins import needs

MIXED = """
    import os
    import sys
    import warnings
        @pytest.mark.parametrize("i", range(4))
    def test_some(i, worker_id, tmp_path, record_property):
        record_property("i", i)
        print("worker", worker_id[:2])
        assert i != 2

    def test_warns():
        warnings.warn("look")

    def test_skips():
        pytest.skip("no")

    @pytest.mark.xfail
    def test_expected():
        assert 0

    @pytest.fixture
    def broken():
        raise ValueError("broken")

    def test_error(broken):
        pass

    def test_suite(record_testsuite_property):
        record_testsuite_property("a", 1)
"""


def _in_order(seen: Seen) -> Seen:
    """Return a session of xdist, whose tests end in any order."""

    def clean(lines: list[str]) -> list[str]:
        noise = r"^\[gw\d\] |\[ *\d+%\] |(?<=gw)\d"
        return sorted(re.sub(noise, "", line) for line in lines)

    return Seen(seen.status[:1], clean(seen.stdout), seen.stderr, clean(seen.junit), seen.files)


def test_the_workers_of_xdist_report_the_same(tmp_path: Path) -> None:
    module = needs("xdist")
    (tmp_path / "test_it.py").write_text(textwrap.dedent(MIXED), encoding="utf-8")
    sessions = Sessions(tmp_path, "-n2", "-v", "-rA", plugins=[module])
    before = _in_order(sessions.history("", ())[0])
    known = (r"^\[gw", r"^(scheduling|created|\d+ workers|gw)", r"^bringing up")
    for method in METHODS:
        after = _in_order(sessions.history(method, ())[0])
        assert not differences(before, after, known), (
            f"{method}\n{differences(before, after, known)}"
        )
