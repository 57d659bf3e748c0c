"""The import audit as a function: ``audit()`` for programs, ``run()`` for the command line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from pytest_cudafork.imports.audit.confirm import CheckedRecord
from pytest_cudafork.imports.audit.coordinator import AuditCoordinator
from pytest_cudafork.imports.since.change_audit import ChangeAudit
from pytest_cudafork.imports.values.records import ImportRecord
from pytest_cudafork.imports.values.settings import AuditSettings
from pytest_cudafork.imports.values.targets import FoundModule, Target, targets_of
from pytest_cudafork.settings.import_settings import ImportSettings

_DEFAULTS = ImportSettings()

_T = TypeVar("_T")
Progress = Callable[[int, int, Target], None]
"""Called with how many imports are done, of how many, and which one is waited for."""


def audit(
    package: str,
    *,
    exclude: Sequence[str] = (),
    without: Sequence[str] = (),
    device: str = "auto",
    jobs: int | None = None,
    timeout: float = _DEFAULTS.timeout,
    memory: int = _DEFAULTS.memory,
    confirm: bool = True,
) -> list[ImportRecord]:
    """Import every module of a package in a process of its own; say which initialize CUDA.

    The package is not imported in this process, and its processes are gone when this returns.

    Args:
        package: Its name as imported, such as "vllm"; more than one separated by commas.
        exclude: Patterns of modules to leave out, such as "vllm.third_party" or "*.test_*".
        without: Libraries to hide, one after the other; "a+b" hides two at once.
        device: What the modules find, as ``--cuda-fork-device`` takes it; "auto" is the real
            driver where there is one, else a phantom with a GPU.
        jobs: How many modules to import at the same time; None: one for each core.
        timeout: Seconds that one import may take.
        memory: Bytes that one import may hold beyond what it was forked with; 0: no limit.
        confirm: Whether culprit lines, crashes and a sample of the clean modules are checked in
            fresh interpreters.

    Returns:
        A record for each module, and for each module and hidden library, sorted by package, hidden
        library and name.

    Raises:
        TypeError: ``package`` or ``device`` is no text, or ``exclude`` or ``without`` is no list of
            texts.
        ValueError: There is no such package, or an argument has a value that it cannot have.
        RuntimeError: This is not Linux, or the real driver was asked for and there is none.

    """
    from pytest_cudafork.imports.audit import plan
    from pytest_cudafork.settings import import_options
    from pytest_cudafork.settings.devices import parse_device
    from pytest_cudafork.settings.option import parse_modules

    _check_types(package, exclude=exclude, without=without)
    imports = ImportSettings(
        packages=parse_modules(package),
        exclude=tuple(exclude),
        without=import_options.parse_libraries(",".join(without)),
        timeout=_read("timeout", timeout, import_options.parse_seconds),
        jobs=0 if jobs is None else _read("jobs", jobs, import_options.parse_jobs),
        memory=_read("memory", memory, import_options.parse_size),
    )
    found = plan.find_all(imports.packages, imports.exclude)
    with plan.usage_errors():
        settings = plan.settings_of(imports, parse_device(device))
    checked = run(found, settings, imports.without, confirm=confirm)
    return [each.record for each in checked]


def _check_types(package: object, **lists: object) -> None:
    """Check what Python would take and misunderstand: a text is a sequence of texts, too."""
    if not isinstance(package, str):
        raise TypeError(
            "audit() takes the name of a package, such as 'vllm', or of more than one in one text "
            f"('vllm, flashinfer'), not {package!r}"
        )
    for name, value in lists.items():
        if isinstance(value, str):
            raise TypeError(f"audit() takes a list of texts as {name}: write {name}=[{value!r}]")
        if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value):
            raise TypeError(f"audit() takes a list of texts as {name}, not {value!r}")


def _read(name: str, value: object, parse: Callable[[str], _T]) -> _T:
    """Read the value of an argument as that of its option.

    Raises:
        ValueError: It is none; the message begins with the argument.

    """
    try:
        return parse(str(value))
    except ValueError as error:
        raise ValueError(f"{name}={value!r}: {error}") from None


def run(
    found: Mapping[str, Sequence[FoundModule]],
    settings: AuditSettings,
    without: Sequence[str] = (),
    *,
    confirm: bool = True,
    progress: Progress | None = None,
    change: ChangeAudit | None = None,
) -> list[CheckedRecord]:
    """Audit modules that were found; the arguments are those of ``audit``, made ready.

    With a change, only what that can reach is imported.

    Raises:
        ValueError: A library cannot be hidden.
        RuntimeError: This is not Linux.

    """
    if sys.platform != "linux":
        raise RuntimeError(f"the import audit works on Linux only (this is {sys.platform})")
    targets = targets_of(found, without)
    if change is not None:
        targets = change.choose(targets)
    afresh = change is not None and change.few and confirm and not settings.memory
    with contextlib.closing(
        AuditCoordinator(settings, found, confirm=confirm, afresh=afresh)
    ) as coordinator:
        coordinator.check_hidden(without)
        coordinator.expect(targets)
        return list(_answers(coordinator, targets, progress))


def _answers(
    coordinator: AuditCoordinator, targets: Sequence[Target], progress: Progress | None
) -> Iterator[CheckedRecord]:
    for number, target in enumerate(targets):
        if progress is not None:
            progress(number, len(targets), target)
        yield coordinator.answer(target)
