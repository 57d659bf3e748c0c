"""Owns the line that says, before the first test, what is checked and with which eyes.

It does not know what will be seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_cudafork.settings.devices import DRIVER_VERSION_FILE
from pytest_cudafork.settings.options import Settings

if TYPE_CHECKING:
    from pytest_cudafork.observe.observer import Observer


def header(settings: Settings, observer: Observer) -> list[str]:
    """Return what is checked and how, in one line, and a line for each thing that is not seen."""
    device = observer.settings.device
    words = {"real": "real", "none": "none", "absent": "phantom (no GPU)"}
    witnesses = observer.witnesses
    parts = [
        f"level {settings.level.value}",
        f"device {words.get(device, f'phantom ({device})')}",
        f"witness {witnesses.words if witnesses else 'none'}",
        f"start method {_start_method()}",
        f"torch {_torch_version()}",
        f"driver {_driver_version()}",
    ]
    limits = [f"cuda-fork: not observable: {limit}" for limit in limits_of(observer)]
    return ["cuda-fork: " + ", ".join(parts), *limits]


def limits_of(observer: Observer) -> tuple[str, ...]:
    """Return what this session cannot see, in words."""
    limits = observer.witnesses.limits if observer.witnesses else ()
    if not observer.early:
        return limits
    return (
        "CUDA was already initialized when the watch began; by whom is not known (load the plugin "
        "earlier: -p cudafork)",
        *limits,
    )


def _start_method() -> str:
    import multiprocessing

    method = multiprocessing.get_start_method(allow_none=True)
    return method or f"{multiprocessing.get_all_start_methods()[0]} (default)"


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "none"


def _driver_version() -> str:
    try:
        with open(DRIVER_VERSION_FILE, encoding="utf-8", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return "none"
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
