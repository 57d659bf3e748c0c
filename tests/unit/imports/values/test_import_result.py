"""What a process that has imported a module reports, and its form on the wire."""

from __future__ import annotations

import pytest

from pytest_cudafork.imports.values.import_result import decode, encode
from pytest_cudafork.imports.values.left_behind import EnvironmentRead, RunningThread, Traces
from tests.support.import_results import CLEAN_IMPORT


def test_it_reads_as_it_was_written() -> None:
    assert decode(encode(CLEAN_IMPORT)) == CLEAN_IMPORT
    foreign = CLEAN_IMPORT._replace(loaded=["pkg", "pkg.\u6f22"])
    assert decode(encode(foreign)) == foreign
    running = CLEAN_IMPORT._replace(running=[RunningThread("server", "a.py:3", True)], threads=2)
    read = decode(encode(running))
    assert read is not None
    assert read.left_running == (RunningThread("server", "a.py:3", True),)
    assert read.left is None
    traces = Traces((EnvironmentRead("HOME", "a.py:3", is_set=True),), ("socket",), ("pool",))
    read = decode(encode(CLEAN_IMPORT._replace(traces=traces.to_plain())))
    assert read is not None
    assert read.left == traces


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[1]", b"null", b'{"kind": "imported"}'])
def test_anything_else_is_no_result(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "failed"},
        {"state": "initialized"},
        {"threads": 2},
        {"changed": True},
        {"decides": True},
        {"traces": Traces(descriptors=("socket",)).to_plain()},
    ],
    ids=str,
)
def test_a_process_may_become_a_fork_server_only_if_nothing_happened_to_it(
    change: dict[str, object],
) -> None:
    assert CLEAN_IMPORT.is_clean
    assert CLEAN_IMPORT._replace(traces=Traces().to_plain()).is_clean
    assert not CLEAN_IMPORT._replace(**change).is_clean  # type: ignore[arg-type]
