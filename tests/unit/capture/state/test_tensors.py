"""The memory below tensors: where it lies, saving it, putting it back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from pytest_cudafork.capture.state.tensors import (  # noqa: E402
    Randomness,
    Saved,
    alias,
    copies,
    devices_of,
    has_memory,
    place_of,
    raw,
    restored,
    storage_of,
    tensors_below,
)


def test_a_place_says_where_contents_lie() -> None:
    x = torch.ones(4, 2)
    whole, part = place_of(x), place_of(x[1:])
    assert whole is not None
    assert part is not None
    assert whole.storage == part.storage == storage_of(x)
    assert (part.offset, part.shape, part.stride) == (2, (3, 2), (2, 1))


@pytest.mark.parametrize(
    "tensor", [torch.ones(2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"]
)
def test_some_tensors_have_no_memory(tensor: Any) -> None:
    assert not has_memory(tensor)
    assert (place_of(tensor), storage_of(tensor)) == (None, 0)


def test_an_alias_can_be_written_whatever_autograd_says() -> None:
    x = torch.ones(2, requires_grad=True)
    alias(x).fill_(3)
    assert x.tolist() == [3, 3]
    assert alias(torch.ones(1).expand(3)).shape == (1,)
    assert raw(torch.ones(2)[1:]).numel() == 8


def test_tensors_below_a_value_come_once_for_each_place() -> None:
    x = torch.ones(4)
    found = tensors_below({"a": x, "b": [x, x[1:]], "c": 3}, "inputs")
    assert list(found) == ["inputs['a']", "inputs['b'][1]"]
    assert devices_of(found, lambda tensor: tensor.device) == {torch.device("cpu"): "inputs['a']"}
    copied = copies(found)
    x.fill_(9)
    assert copied["inputs['a']"].tolist() == [1, 1, 1, 1]


def test_contents_are_saved_compared_and_put_back() -> None:
    x, y = torch.ones(2), torch.zeros(2)
    saved = Saved({"x": x, "again": x[1:], "y": y, "empty": torch.ones(0)})
    assert saved.changed() == []
    x[0] = 5
    assert saved.changed() == ["x"]
    saved.restore()
    assert x.tolist() == [1, 1]
    del x
    saved.restore()
    assert saved.changed() == []


def test_what_goes_beyond_a_limit_is_left_out() -> None:
    saved = Saved({"big": torch.ones(100), "small": torch.ones(2)}, most=100)
    assert saved.left_out == ["big"]


@pytest.mark.parametrize("lost", [True, False])
def test_a_device_that_is_lost_is_an_error_once(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Saved) -> None:
        raise RuntimeError("the device is lost")

    def check() -> None:
        with restored({"x": torch.ones(1)}, lambda: lost):
            monkeypatch.setattr(Saved, "restore", fails)

    if lost:
        check()
    else:
        with pytest.raises(RuntimeError, match="is lost"):
            check()


def test_inputs_have_their_first_contents_again() -> None:
    x = torch.ones(1)

    def check() -> None:
        with restored({"x": x}, lambda: False) as saved:
            x.fill_(2)
            saved.restore()
            assert x.item() == 1
            x.fill_(3)
            raise KeyError

    with pytest.raises(KeyError):
        check()
    assert x.item() == 1


def test_generators_draw_the_same_again() -> None:
    own = torch.Generator()
    before = Randomness([own], cuda=False)
    assert not before.has_advanced()
    first = torch.rand(1, generator=own)
    assert before.has_advanced()
    second = torch.rand(1)
    before.restore()
    assert not before.has_advanced()
    assert torch.equal(first, torch.rand(1, generator=own))
    assert torch.equal(second, torch.rand(1))


def test_the_generator_of_a_gpu_is_saved_too(monkeypatch: pytest.MonkeyPatch) -> None:
    state = [torch.zeros(1)]
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: state[0])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda new: state.__setitem__(0, new))
    before = Randomness(cuda=True)
    state[0] = torch.ones(1)
    assert before.has_advanced()
    before.restore()
    assert state[0].item() == 0
