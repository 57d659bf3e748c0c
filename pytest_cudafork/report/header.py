"""The lines before the first test: what is checked and with which eyes, how graphs are captured."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

from pytest_cudafork.distributions import version_of
from pytest_cudafork.settings import AUTO
from pytest_cudafork.settings.devices import ABSENT, DeviceKind
from pytest_cudafork.settings.options import Settings
from pytest_cudafork.settings.real_driver import VERSION_FILE, has_kernel_part, why_no_driver
from pytest_cudafork.without_torch import NO_TORCH, torch_is_missing

if TYPE_CHECKING:
    from pytest_cudafork.observe.observer import Observer


def header(settings: Settings, observer: Observer) -> list[str]:
    """Return what is checked and how, in one line, and a line for each thing to know of it."""
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
    notes = [f"not observable: {limit}" for limit in limits_of(observer)]
    if device == ABSENT and settings.device.kind is DeviceKind.AUTO and has_kernel_part():
        notes.insert(0, f"the phantom stands in for the driver: {why_no_driver()}")
    return [f"cuda-fork: {text}" for text in (", ".join(parts), *notes)]


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
    version = version_of("torch")
    return "none" if version is None else version or "unknown"


def _driver_version() -> str:
    try:
        with open(VERSION_FILE, encoding="utf-8", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return "none"
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")


def graph_line(settings: Settings, items: Iterable[pytest.Item]) -> str:
    """Return which backends run, and why not the others."""
    from pytest_cudafork.capture.choose import why_no_gpu, why_not

    if torch_is_missing():
        return f"graphs: none ({NO_TORCH})"
    asked = settings.graphs or AUTO
    # The backend knows best, but asking it imports torch, which not every session needs.
    reason = why_not("cuda") if "torch" in sys.modules else why_no_gpu()
    usual = asked if asked != AUTO else ("cuda" if reason is None else "software")
    wanted = {_marked(item) or usual for item in items if _captures(item)}
    runs, skipped = [], []
    for name in ("software", "cuda"):
        if name not in wanted:
            continue
        if asked not in (AUTO, name):
            skipped.append(f"{name} skipped (--cuda-fork-graphs={asked})")
        elif name == "cuda" and reason is not None:
            skipped.append(f"cuda skipped ({reason})")
        else:
            runs.append(name)
    words = ", ".join(runs) or "none"
    if runs == ["software"] and not skipped and asked == AUTO and reason is not None:
        words += f" ({reason})"
    return "; ".join([f"graphs: {words}", *skipped])


def _captures(item: pytest.Item) -> bool:
    return "graph_backend" in getattr(item, "fixturenames", ())


def _marked(item: pytest.Item) -> str | None:
    call = getattr(item, "callspec", None)
    return call.params.get("graph_backend") if call is not None else None
