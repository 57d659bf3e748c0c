"""Modes are told when operators are the host's."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pytest_cudafork.capture.interface.host_work import SeesHostWork, work_of_host  # noqa: E402


class Plain(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """Lets all pass."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


class Noting(Plain, SeesHostWork):
    """Notes what it was told at each operator."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(self.host_works)
        return super().__torch_dispatch__(op, types, args, kwargs)


def test_all_that_want_to_know_are_told_and_told_of_the_end() -> None:
    outer, inner = Noting(), Noting()
    with outer, Plain(), inner:
        torch.ones(1)
        with work_of_host():
            torch.ones(1)
            with pytest.raises(KeyError), work_of_host():
                raise KeyError
            torch.ones(1)
        torch.ones(1)
    assert inner.seen == [False, True, True, False]
    assert outer.seen == inner.seen


def test_without_modes_nothing_happens() -> None:
    with work_of_host():
        assert torch.ones(1).item() == 1
