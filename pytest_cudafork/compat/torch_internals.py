"""What the plugin uses of torch that has no public name; torch is never imported here.

Whether CUDA is initialized, and whether a process was forked from one where it was, torch keeps in
private flags. The tables of functions that are hooked or stood in for are data and lie with what
is made of them (``observe/torch``): names in them come and go between releases, and one that is
missing is left out.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import BuiltinFunctionType
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, io, os, re


def core() -> Any:
    """Return ``torch._C``, the part of torch that is written in C++; torch must be imported."""
    return sys.modules["torch._C"]


def is_cuda_build() -> bool:
    """Whether torch was built with CUDA: its ``torch._C._cuda_getDeviceCount`` is a function of C.

    Also where a witness has hooked it: the original is what the hook wraps then.
    """
    count = getattr(core(), "_cuda_getDeviceCount", None)
    return isinstance(getattr(count, "__wrapped__", count), BuiltinFunctionType)


def parse_to() -> Any:
    """Return ``torch._C._nn._parse_to``, which reads the arguments of ``torch.nn.Module.to``.

    None in a torch without it.
    """
    return getattr(getattr(core(), "_nn", None), "_parse_to", None)


def initialized_flag(cuda: object) -> object:
    """Return ``torch.cuda._initialized``: torch itself has initialized CUDA here; None without."""
    return getattr(cuda, "_initialized", None)


def bad_fork_flag(cuda: object) -> object:
    """Return the function ``torch.cuda._is_in_bad_fork``; None while torch is being imported.

    It says whether this process was forked after torch had initialized CUDA.
    """
    return getattr(cuda, "_is_in_bad_fork", None)


def is_initializing(cuda: Any) -> bool:
    """Whether this thread is initializing torch.cuda (``torch.cuda._tls.is_initializing``)."""
    return hasattr(cuda._tls, "is_initializing")


def lazy_init(cuda: Any) -> None:
    """Initialize as torch does before the first use: ``torch.cuda._lazy_init``.

    ``torch.cuda.init`` is its public name, but a hook on it sees nothing of what C++ calls.
    """
    cuda._lazy_init()


def queued_calls(cuda: Any) -> list[Any]:
    """Return a copy of the calls that wait for the initialization: ``torch.cuda._queued_calls``."""
    return list(cuda._queued_calls)


def device_index(cuda: Any, device: object) -> int | None:
    """Return the index that a device names, or None: ``torch.cuda._utils._get_device_index``."""
    index: int | None = cuda._utils._get_device_index(device, optional=True)
    return index


def visible_device_count(cuda: Any) -> int:
    """Return how many devices NVML and CUDA_VISIBLE_DEVICES leave: ``_device_count_nvml``.

    Negative where NVML is missing. It initializes nothing, unlike ``torch.cuda.device_count``.
    """
    return int(cuda._device_count_nvml())


def is_fake(tensor: object) -> bool:
    """Whether a tensor has no memory: ``torch._subclasses.fake_tensor.FakeTensor``."""
    module: Any = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def functions_taken_from_core(core_module: Any) -> dict[str, Callable[..., Any]]:
    """Return what ``torch.cuda`` took from ``torch._C`` at its import, as it is there now, by name.

    A stand-in put into ``torch._C`` later has to be put into ``torch.cuda``, too.
    """
    return {
        "_is_in_bad_fork": core_module._cuda_isInBadFork,
        "_exchange_device": core_module._cuda_exchangeDevice,
        "_maybe_exchange_device": core_module._cuda_maybeExchangeDevice,
        "_cudart": core_module._cudart,
    }


# -- what it is built for --------------------------------------------------------------------------

_NAMES = {"hip": "ROCm", "xpu": "XPU"}
_RELEASE = re.compile(r"^__version__ *= *['\"](\d+)\.(\d+)", re.MULTILINE)
_LINE = re.compile(r"^(hip|xpu)\b[^=\n]*=[ \t]*(.+)$", re.MULTILINE)


def without_fork() -> str:
    """Return "ROCm" or "XPU" if torch is built for it, else "".

    It is read from torch's file ``version.py`` where torch is not imported, which would take a
    second. What sees touches of CUDA does not see those of others: whether a fork would be safe is
    not known.
    """
    version = sys.modules.get("torch.version")
    if version is None:
        return _in_text(_file())
    return next((name for key, name in _NAMES.items() if getattr(version, key, None)), "")


CAPTURES_SEEN_SINCE = (2, 10)
"""The release from which on all that the look at captures needs is there."""


def release() -> tuple[int, ...]:
    """Return the release of torch, as ``(2, 13)``, likewise without an import; () without torch."""
    module = sys.modules.get("torch.version")
    version = getattr(module, "__version__", "")
    text = _file() if module is None else f"__version__ = {str(version)!r}"
    found = _RELEASE.search(text)
    return () if found is None else (int(found[1]), int(found[2]))


def why_captures_are_not_seen() -> str:
    """Say why captures cannot be looked at with this release; "": they can, or there is no torch.

    Before 2.10 a weak reference to a storage breaks as soon as its Python object is gone, and 2.8
    runs no operator that is made of functions (``torch.cond``) under a mode of ours.
    """
    here = release()
    if not here or here >= CAPTURES_SEEN_SINCE:
        return ""
    return (
        f"captures are looked at with torch {_dotted(CAPTURES_SEEN_SINCE)} or later, and this is "
        f"torch {_dotted(here)}"
    )


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


@functools.cache  # asked before each test that is isolated
def _file() -> str:
    """Return the file ``version.py`` of the torch that an import would find; "": there is none."""
    with contextlib.suppress(OSError, ValueError):  # somebody else's module of that name
        spec = PathFinder.find_spec("torch")
        for folder in (spec and spec.submodule_search_locations) or ():
            with io.open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
                return file.read()
    return ""


def _in_text(text: str) -> str:
    for key, value in _LINE.findall(text):
        if value.strip() not in ("None", "''", '""'):
            return _NAMES[key]
    return ""
