"""Names of torch: those that are used, and those that are hooked or stood in for."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat import torch_internals
from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

USED = {
    "_C": "telling a CUDA build from another",
    "cuda._initialized": "what torch says of this process",
    "cuda._is_in_bad_fork": "what torch says of this process",
    "cuda._tls": "calls within torch's own initialization",
    "cuda._lazy_init": "the present face, and the touch of whatever needs a device",
    "cuda._queued_calls": "the present face's initialization",
    "cuda._utils._get_device_index": "the present face's devices",
    "cuda._device_count_nvml": "the present face's devices",
    "cuda._cached_device_count": "the present face's devices",
    "cuda._raw_device_count_nvml": "the present face's devices",
    "cuda._raw_device_uuid_nvml": "the present face's devices",
    "cuda._exchange_device": "the present face's current device",
    "cuda._maybe_exchange_device": "the present face's current device",
    "cuda._cudart": "the present face's runtime",
    "cuda._CudaDeviceProperties": "the present face's devices",
    "cuda.graphs._cuda_isCurrentStreamCapturing": "the present face's graphs",
    "cuda.graphs._graph_pool_handle": "the present face's graphs",
    "_C._has_cuda": "the present face",
    "_C._nn._parse_to": "the touch of torch.nn.Module.to with a number",
    "_C._get_accelerator": "the touch of torch.get_device_module",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


def test_the_arguments_of_to_are_read_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    read = torch_internals.parse_to()
    assert read("cpu", torch.half) == (torch.device("cpu"), torch.half, False, None)
    monkeypatch.setitem(sys.modules, "torch._C", SimpleNamespace())
    assert torch_internals.parse_to() is None


@pytest.mark.slow
def test_torch_still_has_fake_tensors() -> None:
    module: Any = pytest.importorskip("torch._subclasses.fake_tensor")
    require("torch", module, "FakeTensor", "telling tensors that pin nothing")
    with module.FakeTensorMode():
        assert torch_internals.is_fake(torch.empty(1))
    assert not torch_internals.is_fake(torch.empty(1))


def test_what_is_hooked_is_there() -> None:
    """A hook on a name that torch has dropped would see nothing, and nobody would notice."""
    from pytest_cudafork.observe.torch.rows import ABSENT, ABSENT_CPU, CUDA_BUILD

    rows = [*ABSENT, *(CUDA_BUILD if torch_internals.is_cuda_build() else ABSENT_CPU)]
    for row in rows:
        __import__(row.owner)
        require("torch", sys.modules[row.owner], row.name, "seeing who initializes CUDA")


def test_names_of_the_accelerator_are_there() -> None:
    from pytest_cudafork.observe.torch.c_names import ACCELERATOR

    for name in ACCELERATOR:
        if name in ("_accelerator_getDeviceCapability", "_accelerator_getMemoryInfo"):
            continue  # from torch 2.10 on, and 2.9
        if name == "_accelerator_isAllocatorInitialized" and torch_internals.release() < (2, 9):
            continue
        require("torch", torch._C, name, "the present face's torch.accelerator")


def test_the_core_and_its_build() -> None:
    assert torch_internals.core() is torch._C
    assert torch_internals.is_cuda_build() == (torch.version.cuda is not None)


def test_a_hooked_function_of_c_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def hooked() -> int:
        return 0

    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", hooked, raising=False)
    assert not torch_internals.is_cuda_build()
    monkeypatch.setattr(hooked, "__wrapped__", len, raising=False)
    assert torch_internals.is_cuda_build()


def test_flags_of_a_module_that_is_being_imported_are_unknown() -> None:
    assert torch_internals.initialized_flag(SimpleNamespace()) is None
    assert torch_internals.bad_fork_flag(None) is None


def test_flags_are_torchs_own() -> None:
    bad_fork: Any = torch_internals.bad_fork_flag(torch.cuda)
    assert torch_internals.initialized_flag(torch.cuda) == torch.cuda.is_initialized()
    assert bad_fork() is False


def test_an_initialization_is_seen_from_within() -> None:
    assert not torch_internals.is_initializing(torch.cuda)
    torch.cuda._tls.is_initializing = True
    try:
        assert torch_internals.is_initializing(torch.cuda)
    finally:
        del torch.cuda._tls.is_initializing


def test_the_queue_is_copied() -> None:
    queue = torch_internals.queued_calls(torch.cuda)
    queue.append(None)
    assert queue[:-1] == torch.cuda._queued_calls


def test_devices_are_named_by_torchs_rules() -> None:
    assert torch_internals.device_index(torch.cuda, torch.device("cuda", 3)) == 3


def test_lazy_init_and_the_count_are_asked_of_torch() -> None:
    calls = []
    cuda = SimpleNamespace(_lazy_init=lambda: calls.append("init"), _device_count_nvml=lambda: "2")
    torch_internals.lazy_init(cuda)
    assert calls == ["init"]
    assert torch_internals.visible_device_count(cuda) == 2


def test_what_torch_took_from_its_core_is_named_as_there() -> None:
    core = SimpleNamespace(
        _cuda_isInBadFork=1, _cuda_exchangeDevice=2, _cuda_maybeExchangeDevice=3, _cudart=4
    )
    found: dict[str, object] = {**torch_internals.functions_taken_from_core(core)}
    assert list(found.values()) == [1, 2, 3, 4]
    for name in found:
        require("torch", torch.cuda, name, "the present face")


@pytest.fixture
def asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    torch_internals._file.cache_clear()
    yield
    torch_internals._file.cache_clear()


VERSIONS = {
    "cpu": (
        "cuda: Optional[str] = None\nhip: Optional[str] = None\nxpu: Optional[str] = None\n",
        "",
    ),
    "rocm": ("cuda: Optional[str] = None\nhip: Optional[str] = '6.2.41133'\n", "ROCm"),
    "xpu": ("hip: Optional[str] = None\nxpu: Optional[str] = '20250101'\n", "XPU"),
    "plain names": ("hip = '5.1'\n", "ROCm"),
    "empty": ("hip = ''\nhip_other = '1'\n", ""),
    "no such names": ("__version__ = '1.0'\n", ""),
}


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(("text", "name"), VERSIONS.values(), ids=VERSIONS)
def test_the_file_of_an_installed_torch_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_internals.without_fork() == name


@pytest.mark.usefixtures("asked_anew")
def test_without_torch_or_its_file_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert torch_internals.without_fork() == ""
    torch_internals._file.cache_clear()
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    assert torch_internals.without_fork() == ""


def test_a_torch_that_is_imported_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.version", SimpleNamespace(hip=None, xpu="1"))
    assert torch_internals.without_fork() == "XPU"


@pytest.mark.usefixtures("asked_anew")
@pytest.mark.parametrize(
    ("text", "release", "why"),
    [
        ("__version__ = '2.9.1+cu128'\ngit_version = 'a'", (2, 9), "and this is torch 2.9"),
        ("__version__ = '2.10.0'", (2, 10), ""),
        ('__version__ = "2.13.0+cpu"', (2, 13), ""),
        ("version = '2.9.1'", (), ""),
    ],
)
def test_the_release_is_known_without_an_import(
    text: str, release: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.version", raising=False)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert torch_internals.release() == release
    said = torch_internals.why_captures_are_not_seen()
    assert why in said
    assert bool(said) == bool(why)


def test_the_release_of_a_torch_that_is_imported_is_its_own() -> None:
    assert torch_internals.release() == tuple(map(int, torch.__version__.split(".")[:2]))


def test_the_installed_torch_writes_these_names() -> None:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).with_name("version.py").read_text()
    assert "hip" in text, "torch no longer says in version.py what it is built for"
    assert torch_internals._LINE.search(text)
    assert torch_internals._RELEASE.search(text)
