"""Arguments that cannot be meant are told, and what the protocol of a forward gives and takes."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork import (  # noqa: E402
    CapturePairError,
    GraphNotJudgedError,
    GraphUsageError,
)
from pytest_cudafork import assert_replay_equals_eager as compare  # noqa: E402
from pytest_cudafork.capture.pair.capture_pair import capture_pair  # noqa: E402
from tests.support.capture import Desc, Mode  # noqa: E402

X = torch.ones(4)


@pytest.mark.parametrize("rows", [True, "two", 2.0, 400, 0])
def test_what_is_no_number_of_live_rows_is_told(rows: Any) -> None:
    x = torch.ones(4)

    def vary() -> Any:
        x.fill_(2)
        return rows

    with pytest.raises(GraphUsageError, match="live row"):
        compare(lambda x: x * 2, [x], vary=[vary], backend="software")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rtol": -1}, "rtol=-1: give a finite number"),
        ({"rtol": float("nan")}, "rtol=nan"),
        ({"atol": float("inf")}, "atol=inf"),
        ({"rtol": "0"}, "rtol='0'"),
        ({"refills": True}, "give vary"),
        ({"pool": 3}, "pool is 3: give what new_pool"),
    ],
)
def test_options_that_cannot_be_meant_are_told(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        compare(lambda x: x * 2, [X], backend="software", **options)


def test_an_output_without_values_is_told() -> None:
    with pytest.raises(GraphUsageError, match="output lies on the device meta"):
        compare(lambda x: torch.ones(2, device="meta"), [X], backend="software")


def double(desc: Any, warmup: bool) -> Any:
    return (lambda: X * 2), {"c": {"plan": None}}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rtol": -1}, "rtol=-1"),
        ({"shared": "state"}, "shared is 'state': give a list"),
        ({"shared": ["state.cc"]}, r"'state.cc' is no path in the states; there are state\['c'\]"),
        ({"other_descs": 8}, "other_descs is 8: give a list"),
        ({"desc": Desc(4, Mode.PIECEWISE)}, "desc.cg_mode is PIECEWISE, and mode is 'FULL'"),
    ],
)
def test_options_of_a_pair_that_cannot_be_meant(options: dict[str, Any], words: str) -> None:
    with pytest.raises(GraphUsageError, match=words):
        capture_pair(double, **{"desc": 4, "backend": "software", **options})
    capture_pair(double, Desc(4, Mode.FULL), shared=["state['c']"], backend="software")


def test_advice_speaks_of_the_factory_as_it_is() -> None:
    meta: dict[str, Any] = {"plan": None}

    def forward() -> Any:
        if meta["plan"] is None:
            meta["plan"] = X * 3
        return X * meta["plan"]

    with pytest.raises(CapturePairError) as caught:
        capture_pair(lambda desc: (forward, meta), 4, backend="software")
    text = " ".join(str(caught.value).split())
    assert "(create_forward_fn(desc))" in text
    assert "warmup=False" not in text
    assert "what to do: as above" in text


def test_outputs_that_are_wider_than_the_batch_are_told() -> None:
    buffer = torch.zeros(8)

    def create(desc: int, warmup: bool) -> Any:
        return fill, {}

    def fill() -> None:
        buffer[:4].copy_(X * 2)

    with pytest.raises(CapturePairError, match="slice the outputs"):
        capture_pair(create, 4, outputs=lambda: buffer, backend="software")
    capture_pair(create, 4, outputs=lambda: buffer[:4], backend="software")


@pytest.mark.parametrize("buffered", [False, True])
def test_pieces_are_replayed_on_new_metadata(buffered: bool) -> None:
    lens, out = torch.tensor([1, 2, 4, 8]), torch.zeros(4)

    def create(desc: int, warmup: bool) -> Any:
        meta: dict[str, Any] = {"plan": None}

        def forward(mode: str) -> Any:
            if meta["plan"] is None:
                meta["plan"] = 1.0 / lens.float()
            result = X * meta["plan"]
            return store(result)

        return forward, meta

    def store(result: Any) -> Any:
        if not buffered:
            return result
        out.copy_(result)
        return None

    capture_pair(
        create, 4, mode="PIECEWISE", persistent={"lens": lens}, vary=[lambda: lens.fill_(3)],
        outputs=(lambda: out) if buffered else None, backend="software",
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: pieces can be captured")
def test_pieces_of_real_graphs_need_a_gpu() -> None:
    def forward(mode: str) -> Any:
        if mode == "PIECEWISE":
            torch.cuda.CUDAGraph()
        return X * 2

    with pytest.raises(GraphNotJudgedError, match="needs a GPU"):
        capture_pair(lambda desc, warmup: (forward, {}), 4, mode="PIECEWISE", backend="software")
