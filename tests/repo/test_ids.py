"""A test has the same id on every machine, so runs can be compared, and each test asked for."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OF_A_PROCESS = (" at 0x", "<module ")


def test_no_id_names_a_place_of_this_machine_or_an_address(request: pytest.FixtureRequest) -> None:
    """Of the tests of this session, which are all in a whole run."""
    places = (str(ROOT), sys.prefix, sysconfig.get_path("purelib"))
    own = [place for place in places if place != sys.base_prefix]  # as /usr, which tests name
    wrong = (*own, *_OF_A_PROCESS)
    items = request.session.items
    assert [one.nodeid for one in items if any(part in one.nodeid for part in wrong)] == []
