"""Tensors of torch and their memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.compat.torch_graphs import tensors  # noqa: E402

USED = {
    "_foreach_copy_": "judging copies of lists between host and device",
    "serialization._package_registry": "saving tensors that stand for a GPU's",
    "_conj": "replays on conjugated tensors",
    "_neg_view": "replays on negated tensors",
    "UntypedStorage._new_with_weak_ptr": "noticing memory that is freed",
    "multiprocessing.reductions.StorageWeakRef": "noticing memory that is freed",
}
OF_CUDA_BUILDS = {
    "_C._has_Standard_Deleter": "telling memory of torch from that of others",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


@pytest.mark.parametrize("name", OF_CUDA_BUILDS)
@pytest.mark.skipif(torch.version.cuda is None, reason="torch is built without CUDA")
def test_torch_built_with_cuda_still_has_the_name(name: str) -> None:
    require("torch", torch, name, OF_CUDA_BUILDS[name])


def test_a_storage_is_known_by_its_identity_and_found_while_it_lives() -> None:
    x = torch.ones(4)
    storage = x.untyped_storage()
    assert tensors.identity_of(storage) == tensors.identity_of(x[1:].untyped_storage())
    weak = torch.multiprocessing.reductions.StorageWeakRef(storage)
    assert tensors.storage_behind(weak).data_ptr() == x.data_ptr()
    del x, storage
    assert tensors.storage_behind(weak) is None


def test_changes_in_place_are_counted() -> None:
    x = torch.ones(1)
    before = tensors.version_of(x)
    x.add_(1)
    assert tensors.version_of(x) > before
    with torch.inference_mode():
        assert tensors.version_of(torch.ones(1)) == -1


def test_views_with_their_bits() -> None:
    x = torch.ones(1, dtype=torch.complex64)
    assert tensors.conjugated(x).is_conj()
    assert tensors.negated(x).is_neg()


def test_zeros_without_memory_are_told_from_tensors_with_some() -> None:
    assert tensors.has_no_storage(torch._efficientzerotensor((2,)))
    assert not tensors.has_no_storage(torch.zeros(2))


def test_memory_counts_as_torchs_where_torch_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_has_Standard_Deleter", lambda _: False, raising=False)
    assert not tensors.is_freed_by_torch(torch.ones(1).untyped_storage())
    monkeypatch.delattr(torch._C, "_has_Standard_Deleter")
    assert tensors.is_freed_by_torch(torch.ones(1).untyped_storage())


def test_a_tensor_around_another_has_no_storage() -> None:
    class Around(torch.Tensor):  # type: ignore[misc, unused-ignore]
        @classmethod
        def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
            return NotImplemented

    wrapped = torch.Tensor._make_wrapper_subclass(Around, (2,))
    assert tensors.has_no_storage(wrapped)
    assert not tensors.has_no_storage(torch.nn.Parameter(torch.zeros(2)))


def test_what_functional_transforms_wrap_is_unwrapped() -> None:
    x, seen = torch.ones(2), []

    def f(x: Any) -> Any:
        seen.append(tensors.unwrapped(x))
        return x.sum()

    torch.func.vmap(torch.func.grad(f))(x[None])
    assert seen[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert tensors.unwrapped(x) is x


def test_places_of_saved_tensors_are_asked_and_put_in_order() -> None:
    entries = tensors.places_of_saved()
    assert all(callable(tag) and callable(put) for _, tag, put in entries)
    storage = torch.ones(1).untyped_storage()
    assert entries[0][1](storage) == "cpu"
    assert tensors.untyped(storage) is storage
    typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    assert tensors.untyped(typed) is storage


def test_a_parameter_that_a_lazy_module_has_not_made_has_no_storage() -> None:
    lazy = torch.nn.LazyLinear(2).weight
    assert tensors.has_no_storage(lazy)
    with pytest.raises(tensors.NO_STORAGE):
        lazy.untyped_storage()
