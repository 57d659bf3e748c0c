"""What a refill leaves of an earlier batch is found for every type, and made stale."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from pytest_cudafork import ReplayDiffersError, assert_replay_equals_eager  # noqa: E402
from pytest_cudafork.capture.replay.refill import Refill  # noqa: E402

BYTES = [torch.uint8, torch.int8]
TYPES = [
    torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.bool, *BYTES,
    torch.complex64, torch.float8_e5m2,
]  # fmt: skip


def refilled(tensors: dict[str, Any], change: Any, stale: Any = None) -> Refill:
    refill = Refill(tensors, stale)
    with refill.watched():
        change()
    return refill


def test_what_a_refill_leaves_is_found() -> None:
    x, n = torch.zeros(4), torch.tensor([5, 6, 7])

    def change() -> None:
        x[:2] = 1.0
        n[0] = 9

    refill = refilled({"x": x, "n": n, "empty": torch.ones(0)}, change)
    refill.leave(clean=True)
    assert (x.tolist(), n.tolist()) == ([1, 1, 0, 0], [9, 0, 0])
    refill.leave(clean=False)
    assert (x.tolist(), n.tolist()) == ([1, 1, 777, 777], [9, 6, 7])


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_left_of_every_type_is_not_what_eager_code_gets(dtype: Any) -> None:
    x = torch.zeros(6).to(dtype)
    refill = refilled({"x": x}, lambda: x[:3].copy_(torch.ones(3).to(dtype)))
    refill.leave(clean=True)
    wide = torch.complex64 if dtype.is_complex else torch.float32
    assert x.to(wide).tolist() == [1, 1, 1, 0, 0, 0]
    refill.leave(clean=False)
    assert x.to(wide)[:3].tolist() == [1, 1, 1]
    assert dtype.is_complex or (x.to(wide)[3:] != 0).all()


@given(st.lists(st.integers(0, 255), min_size=6, max_size=6), st.sets(st.integers(0, 5)))
@pytest.mark.parametrize("how", ["copy", "index", "scatter", "cond", "masked", "numpy"])
def test_any_byte_may_be_written(how: str, values: list[int], places: set[int]) -> None:
    """Also the byte that marks what was not written, unless it goes past torch's operators."""
    x = torch.zeros(6, dtype=torch.uint8)
    index = torch.tensor(sorted(places), dtype=torch.int64)
    new = torch.tensor([values[at] for at in sorted(places)], dtype=torch.uint8)

    def change() -> None:
        if how == "copy":
            for at in places:
                x[at] = values[at]
        elif how == "index":
            x[index] = new
        elif how == "scatter":
            x.scatter_(0, index, new)
        elif how == "cond":
            branch = lambda x, index, new: (x.scatter_(0, index, new),)  # noqa: E731
            torch.ops.higher_order.cond(True, branch, branch, (x, index, new))
        elif how == "masked":
            mask = torch.zeros(6, dtype=torch.bool).index_fill_(0, index, True)
            x.masked_scatter_(mask, new)
        else:
            x.numpy()[sorted(places)] = [value if value != 0xA5 else 0 for value in new.tolist()]

    refill = refilled({"x": x}, change)
    refill.leave(clean=True)
    for at in range(6):
        expected = values[at] if at in places else 0
        assert x[at] == (expected if how != "numpy" or expected != 0xA5 else 0)


def test_the_batch_before_is_what_is_stale() -> None:
    table = torch.zeros(2, 3, dtype=torch.int64)
    stale: dict[str, Any] = {}

    def first() -> None:
        table.copy_(torch.tensor([[1, 2, 3], [4, 5, 6]]))

    refilled({"table": table}, first, stale).leave(clean=False)

    def second() -> None:
        table[0, :2] = torch.tensor([7, 8])

    refill = refilled({"table": table}, second, stale)
    refill.leave(clean=True)
    assert table.tolist() == [[7, 8, 0], [0, 0, 0]]
    refill.leave(clean=False)
    assert table.tolist() == [[7, 8, 3], [4, 5, 6]]


def test_where_nothing_was_before_a_value_of_this_batch_is_stale() -> None:
    table = torch.zeros(3, 3, dtype=torch.int64)

    def change() -> None:
        table[0, :2] = torch.tensor([9, 4])
        table[1, 0] = 5

    refill = refilled({"table": table, "idle": torch.zeros(2, dtype=torch.int64)}, change)
    refill.leave(clean=False)
    assert table.tolist() == [[9, 4, 4], [5, 4, 4], [9, 4, 4]], "valid in its column, else small"


KV = torch.randn(32)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, *BYTES])
@pytest.mark.parametrize("masks", [True, False])
def test_padding_of_an_earlier_batch_in_a_block_table(dtype: Any, masks: bool) -> None:
    """The table begins at zero, and a shorter batch leaves the blocks of a longer one."""
    table, lens = torch.zeros(2, 4, dtype=dtype), torch.zeros(2, dtype=dtype)

    def batch(*blocks: list[int]) -> Any:
        def fill() -> None:
            lens.zero_()
            for row, its in enumerate(blocks):
                table[row, : len(its)] = torch.tensor(its, dtype=dtype)
                lens[row] = len(its)

        return fill

    def read(table: Any, lens: Any) -> Any:
        values = KV[table.long()]
        used = torch.arange(4) < lens.long()[:, None]
        return torch.where(used, values, 0.0).sum(1) if masks else values.sum(1)

    def check() -> None:
        vary = [batch([3, 4, 5], [6, 7]), batch([8])]
        assert_replay_equals_eager(read, [table, lens], vary=vary, refills=True, backend="software")

    if masks:
        check()
    else:
        with pytest.raises(ReplayDiffersError, match="stale padding"):
            check()


def test_a_flag_that_stays_from_an_earlier_batch() -> None:
    live, x = torch.zeros(4, dtype=torch.bool), torch.ones(4)

    def batch(n: int) -> Any:
        return lambda: (live[:n].fill_(True), x.fill_(1.0))

    def read(live: Any, x: Any) -> Any:
        return torch.where(live, x, 0.0).sum()

    with pytest.raises(ReplayDiffersError, match="stale padding"):
        assert_replay_equals_eager(
            read, [live, x], vary=[batch(3), batch(1)], refills=True, backend="software"
        )
