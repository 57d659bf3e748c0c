"""What an import leaves behind, as plain data and back."""

from __future__ import annotations

import json

from pytest_cudafork.imports.values.left_behind import WHOLE, EnvironmentRead, Files, Traces


def test_traces_are_the_same_after_a_journey_as_plain_data() -> None:
    traces = Traces(
        (EnvironmentRead("HOME", "/base/a.py:4", is_set=True), EnvironmentRead(WHOLE, "", True)),
        ("socket",),
        ("pool",),
    )
    assert Traces.from_plain(json.loads(json.dumps(traces.to_plain()))) == traces


def test_nothing_is_left_behind_unless_it_is_said() -> None:
    assert not any(Traces())
    assert not any(Traces().to_plain().values())
    assert not any(Files())
