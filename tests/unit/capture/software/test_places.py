"""Who says where tensors lie."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.software.places import (  # noqa: E402
    Places,
    known_places,
    noted_on_host,
)


class Evens(Places):
    """Says of tensors with an even number of elements that they lie on the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def lies_on_host(self, tensor: Any) -> bool | None:
        return True if tensor.numel() % 2 == 0 else None

    def note_on_host(self, tensor: Any) -> None:
        tensor.noted = True


def test_the_mode_that_knows_is_asked_while_it_is_active() -> None:
    assert known_places() is None
    with torch.device("cpu"), Evens():
        on_host = known_places()
        assert on_host is not None
        assert (on_host(torch.ones(2)), on_host(torch.ones(3))) == (True, None)
    assert known_places() is None


def test_what_lies_on_the_host_is_noted_by_the_mode_that_knows() -> None:
    x = torch.ones(1)
    assert not noted_on_host(x)
    with Evens():
        assert noted_on_host(x)
    assert x.noted


def test_a_mode_has_to_say_it() -> None:
    with pytest.raises(NotImplementedError):
        Places().lies_on_host(torch.ones(1))
    with pytest.raises(NotImplementedError):
        Places().note_on_host(torch.ones(1))
