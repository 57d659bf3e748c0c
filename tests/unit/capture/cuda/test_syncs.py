"""Host syncs that do not break a capture are found by torch's warnings."""

from __future__ import annotations

import warnings

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sync debug modes that were set, without a GPU."""
    import torch

    seen: list[int] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", seen.append)
    return seen


def test_a_line_that_waits_is_one_finding(modes: list[int]) -> None:
    from pytest_cudafork.capture.cuda.syncs import Syncs

    syncs = Syncs()
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        with syncs.watched():
            for _ in range(2):
                warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
            warnings.warn("another matter", stacklevel=1)
    (found,) = syncs.findings()
    assert found.check == "host-sync"
    assert found.where.startswith(__file__)
    assert [str(one.message) for one in others] == ["another matter"]
    assert modes == [1, 2], "the mode is as before"


def test_an_exception_leaves_nothing_behind(modes: list[int]) -> None:
    from pytest_cudafork.capture.cuda.syncs import Syncs

    shown = warnings.showwarning
    with pytest.raises(KeyError), Syncs().watched():
        raise KeyError
    assert warnings.showwarning is shown
    assert modes == [1, 2]
