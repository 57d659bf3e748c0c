"""Tests of warnings that are always shown and never raised."""

from __future__ import annotations

import errno
import os
import warnings

import pytest

from pytest_cudafork.process.loud_warning import end_loudly, loud_warning, warn_of_survivors


def warn() -> None:
    """Warn, for the function that calls this."""
    loud_warning(RuntimeWarning("a server has died"))


@pytest.mark.parametrize("action", ["error", "ignore", "once"])
def test_it_is_shown_each_time_whatever_the_filters_say(action: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter(action)  # type: ignore[arg-type]
        before = list(warnings.filters)
        for _ in range(2):
            warn()
        assert warnings.filters == before
    assert [str(one.message) for one in caught] == ["a server has died"] * 2
    assert {one.filename for one in caught} == {__file__}


def test_processes_that_could_not_be_ended_are_named() -> None:
    with pytest.warns(
        RuntimeWarning, match=rf"not be ended: {os.getpid()} \(.*python.*\)\. It hangs"
    ):
        warn_of_survivors([os.getpid()])


def test_where_all_have_ended_nothing_is_said() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warn_of_survivors([])
    assert not caught


def test_that_nobody_could_look_is_told() -> None:
    def end() -> list[int]:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.warns(RuntimeWarning, match="could not be looked for: .*Too many open files"):
        assert not end_loudly(end)


def test_that_all_have_ended_is_known() -> None:
    assert end_loudly(list)
