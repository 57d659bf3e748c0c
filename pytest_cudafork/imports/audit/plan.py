"""What the options amount to: the modules to import, the driver they find, how many run at once.

Pytest, the command line and ``audit()`` all prepare an audit here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import pytest

from pytest_cudafork.check.session import resolve_device
from pytest_cudafork.imports.audit.discover import UnknownPackage, find_modules
from pytest_cudafork.imports.values.settings import DEFAULT_FACE, AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.process import launch
from pytest_cudafork.settings.devices import Device, DeviceKind
from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.real_driver import has_real_driver


def find_all(packages: Sequence[str], exclude: Sequence[str]) -> dict[str, list[FoundModule]]:
    """Return the modules of all packages; a package that lies in another one is part of that.

    Raises:
        ValueError: No package is named, one is not there or excluded, or a pattern can match
            nothing.

    """
    if not packages:
        raise ValueError("no package is named: give the name that is imported, such as 'vllm'")
    outer = [
        name
        for name in dict.fromkeys(packages)
        if not any(name.startswith(f"{other}.") for other in packages)
    ]
    return {name: _find(name, exclude) for name in outer}


def _find(package: str, exclude: Sequence[str]) -> list[FoundModule]:
    try:
        found = find_modules(package, exclude)
    except UnknownPackage as error:
        hint = _what_is_here(package.partition(".")[0]) if error.is_top else ""
        if hint:
            raise UnknownPackage(f"{error} {hint}") from None
        raise
    if not found:
        raise ValueError(f"nothing is left of {package!r}: it is excluded by {', '.join(exclude)}")
    return found


def _what_is_here(name: str) -> str:
    """Say how what lies here, or in ``src``, comes on the search path; "" if nothing does."""
    for source in ("", "src"):
        for kind, path in (("folder", name), ("file", f"{name}.py")):
            here = os.path.join(source, path)
            if not (os.path.isdir(here) if kind == "folder" else os.path.isfile(here)):
                continue
            told = f"The {kind} {here!r} is here, but not on the module search path: "
            if source:
                return f"{told}install it (`pip install -e .`), or set PYTHONPATH={source}."
            return f"{told}start with `python -m pytest`, or set `pythonpath = .` in the ini file."
    return ""


def settings_of(imports: ImportSettings, device: Device) -> AuditSettings:
    """Return the settings of the audit's processes.

    Without a real driver, "auto" is a phantom with a GPU: code behind ``if is_cuda`` runs, too.

    Raises:
        pytest.UsageError: The real driver was asked for, and there is none.

    """
    if device.kind is DeviceKind.AUTO and not has_real_driver():
        face = DEFAULT_FACE
    else:
        face = resolve_device(device)
    return AuditSettings(
        device=face,
        timeout=imports.timeout,
        jobs=imports.jobs or launch.usable_cores(),
        memory=imports.memory,
    )


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Raise pytest's error about wrong usage as a RuntimeError, for callers outside pytest."""
    try:
        yield
    except pytest.UsageError as error:
        raise RuntimeError(str(error)) from None
