"""How many elements operators put at given places, and which of them read what was there."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.record.scattered import UNKNOWN, elements_put, places_among  # noqa: E402

X = torch.zeros(4, 3)
ROWS = torch.tensor([0, 2])


@pytest.mark.parametrize(
    ("name", "args", "put"),
    [
        ("index_put_", (X, [ROWS], torch.ones(2, 3)), 6),
        ("index_put_", (X, [None, ROWS], 1), 8),
        ("index_put_", (X, [ROWS, ROWS], 1), 2),
        ("index_put_", (X, [ROWS[:, None], ROWS], 1), 4),
        ("index_put_", (X, [X > 0], 1), UNKNOWN),
        ("index_put_", (X, [ROWS], 1, False), 6),
        ("index_put_", (X, [ROWS], 1, True), None),
        ("_index_put_impl_", (X, [ROWS], 1, True, False), None),
        ("index_copy_", (X, 0, ROWS, torch.ones(2, 3)), 6),
        ("scatter_", (X, 0, torch.zeros(2, 3, dtype=torch.int64), 1), 6),
        ("scatter_", (X, 0, torch.zeros(2, 3, dtype=torch.int64), 1, "add"), None),
        ("index_fill_", (X, 0, ROWS, 1), UNKNOWN),
        ("put_", (X, ROWS, torch.ones(2), True), None),
        ("masked_fill_", (X, X > 0, 1), UNKNOWN),
        ("index_add_", (X, 0, ROWS, torch.ones(2, 3)), None),
        ("add_", (X, 1), None),
    ],
)
def test_places_are_counted(name: str, args: tuple[Any, ...], put: int | None) -> None:
    assert elements_put(name, args, {}) == put


@pytest.mark.parametrize("way", [{"accumulate": True}, {"reduce": "add"}])
def test_what_is_added_reads_what_was_there(way: dict[str, Any]) -> None:
    name = "index_put_" if "accumulate" in way else "scatter_"
    assert elements_put(name, (X, [ROWS], 1), way) is None


@pytest.mark.parametrize(
    ("name", "args", "places"),
    [
        ("index_copy_", (X, 0, ROWS, torch.ones(2, 3)), [ROWS]),
        ("scatter", (X, 0, ROWS, X), [ROWS]),
        ("index_put_", (X, [None, ROWS], 1), [ROWS]),
        ("put_", (X, ROWS, X), [ROWS]),
        ("copy_", (X, ROWS), []),
        ("index_add_", (X, 0), []),
    ],
)
def test_places_are_among_the_arguments(name: str, args: Any, places: list[Any]) -> None:
    found = places_among(name, args)
    assert len(found) == len(places)
    assert all(one is other for one, other in zip(found, places, strict=True))
