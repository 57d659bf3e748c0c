"""What a pytest session holds for the plugin: its settings, its watch, its ledger."""

from __future__ import annotations

import sys
import warnings
from contextlib import ExitStack
from os import getpid, getppid
from os.path import lexists, samefile
from random import getstate
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cudafork.settings import devices, environment
from pytest_cudafork.settings.devices import Device
from pytest_cudafork.settings.options import Settings, read_settings

if TYPE_CHECKING:
    from pytest_cudafork.check.watch import Watch


class CudaForkSession:
    """One pytest process's part in the session.

    ``joined`` is true for a process that works for another pytest process (an xdist worker, an
    isolated test): it writes that one's ledger and leaves the summary to it. ``reports_home`` is
    true for a worker of xdist that cannot, on another host: it has a ledger of its own.
    """

    # no dataclass: making one takes a tenth of the time in which the plugin is imported
    def __init__(self, settings: Settings, *, isolated: bool = False) -> None:
        self.settings = settings
        self.watch: Watch | None = None
        self.joined = False
        self.reports_home = False
        self.isolated = isolated
        self.random_state: tuple[Any, ...] = getstate()
        """State of Python's generator before the user's code was imported."""
        self.filters: list[Any] = list(warnings.filters)
        """Those of warnings outside every test, from when the first one begins."""


SESSION = pytest.StashKey[CudaForkSession]()


def begin(config: pytest.Config, namespace: Any) -> CudaForkSession:
    """Read the options and, if the check is on, begin the watch; ends with the configuration.

    Raises:
        pytest.UsageError: an option is wrong, or what it asks for is not to be had here.

    """
    if SESSION in config.stash:
        return config.stash[SESSION]
    elsewhere = _is_elsewhere(config)
    settings = read_settings(config, namespace, elsewhere=elsewhere)
    isolated = environment.take(environment.ISOLATED) == "1"
    session = CudaForkSession(settings, isolated=isolated)
    session.reports_home = elsewhere
    config.stash[SESSION] = session
    if not settings.active:
        return session
    if sys.platform != "linux":
        raise pytest.UsageError(
            f"--cuda-fork-check works on Linux only (this is {sys.platform}): fork and CUDA do not "
            "meet elsewhere"
        )
    _begin_watch(config, session)
    return session


def begin_again(config: pytest.Config, variables: dict[str, str]) -> CudaForkSession:
    """Read the options once more in a worker on another host, with what its controller is told.

    Args:
        config: The worker's configuration.
        variables: Variables of options; one that is set here stays.

    Raises:
        pytest.UsageError: as for ``begin``.

    """
    session = config.stash[SESSION]
    undo = ExitStack()
    config.add_cleanup(undo.close)
    for name, text in variables.items():
        if not environment.is_set(name):
            environment.set_variable(undo, name, text)
    before, session.settings = (
        session.settings,
        read_settings(config, config.option, elsewhere=True),
    )
    session.reports_home = True
    if session.watch is not None and _watched(before) != _watched(session.settings):
        session.watch.end()
        session.watch = None
    if session.settings.active and session.watch is None:
        _begin_watch(config, session)
    return session


def _watched(settings: Settings) -> tuple[object, ...]:
    """Return what a watch is made of."""
    return settings.level, settings.device, settings.allow


def _begin_watch(config: pytest.Config, session: CudaForkSession) -> None:
    from pytest_cudafork.check.watch import inherited_watch

    inherited = inherited_watch()
    owner = str(getpid())
    if inherited is not None and _works_for_parent(session.isolated):
        session.watch, session.joined = inherited, True
        config.add_cleanup(inherited.observer.work_for(owner))
        return
    _begin_own_watch(config, session, owner)


def _works_for_parent(isolated: bool) -> bool:
    """Whether this pytest process is a part of the session whose watch it inherited."""
    if isolated:
        return True
    # A session that a test starts is none, though it may be a child of a worker or of the session.
    return _is_xdist_worker() and environment.value(environment.OWNER) == str(getppid())


def _is_elsewhere(config: pytest.Config) -> bool:
    """Whether this is a worker of xdist that does not share its controller's ledger.

    On another host; or of a session without the check, which has none. A session that a test runs
    within the process of a worker is none, though execnet runs it, too.
    """
    is_worker = hasattr(config, "workerinput") or (_is_xdist_worker() and not _in_session())
    return is_worker and not _works_for_parent(isolated=False)


def _in_session() -> bool:
    """Whether a session runs already: the configuration of a worker is made before its own."""
    return _is_called_by("_pytest.main")


def _is_xdist_worker() -> bool:
    """Whether this process is run by execnet, the only sign so early of being a worker of xdist.

    The variable PYTEST_XDIST_WORKER says nothing: a worker's children inherit it.
    """
    return _is_called_by("__channelexec__")


def _is_called_by(module: str) -> bool:
    """Whether code of a module is among the callers of this."""
    frame = sys._getframe().f_back
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def _begin_own_watch(config: pytest.Config, session: CudaForkSession, owner: str) -> None:
    from pytest_cudafork.check.watch import Watch, tell_program
    from pytest_cudafork.observe.handed_on import WatchSettings
    from pytest_cudafork.observe.witnesses import WitnessError

    settings = session.settings
    tell_program(
        f"what the pytest session in process {owner} did: it has --cuda-fork-check, and tells of "
        "that itself"
    )
    # A session that a test of another session starts is not yet in any test of its own.
    undo = ExitStack()
    environment.unset_variable(undo, environment.TEST)
    environment.set_variable(undo, environment.PHASE, "start")
    config.add_cleanup(undo.close)
    watch = Watch(
        WatchSettings(
            device=resolve_device(settings.device),
            ledger=_make_ledger(config, "" if session.reports_home else settings.ledger),
            level=settings.level.value,
            allow=settings.allow,
        ),
        owner,
    )
    try:
        watch.begin()
    except WitnessError as error:
        raise pytest.UsageError(f"--cuda-fork-device: {error}") from None
    watch.observer.note_watch()
    session.watch = watch
    config.add_cleanup(watch.end)
    if not session.reports_home:  # such a one is told what the baseline accepts
        _begin_baseline(config, watch, settings)


def _begin_baseline(config: pytest.Config, watch: Watch, settings: Settings) -> None:
    """Tell the processes of the session what the baseline accepts.

    Raises:
        pytest.UsageError: it cannot be read, or not be written though it is to be.

    """
    if not settings.baseline:
        return
    from pytest_cudafork.baseline.entries import CheckBaseline
    from pytest_cudafork.baseline.file import BaselineError, check_writable
    from pytest_cudafork.check.accepted import Terms
    from pytest_cudafork.settings.options import BASELINE, BASELINE_UPDATE

    everything = settings.baseline_update == "all"
    baseline = CheckBaseline()
    try:
        if not everything or lexists(settings.baseline):
            baseline = CheckBaseline.read(settings.baseline, BASELINE_UPDATE.flag)
        if settings.baseline_update:
            check_writable(settings.baseline)
    except BaselineError as error:
        raise pytest.UsageError(f"{BASELINE.flag}: {error}") from None
    watch.acceptance.begin(Terms(str(config.rootpath), baseline.entries, everything))


def _make_ledger(config: pytest.Config, path: str) -> str:
    """Create the ledger; a temporary one, for "", is removed with the configuration.

    Raises:
        pytest.UsageError: it cannot be written.

    """
    from pytest_cudafork.observe.base.ledger import Ledger, LedgerError
    from pytest_cudafork.observe.base.ledger_folder import make_ledger, remove_ledger
    from pytest_cudafork.observe.base.undo import only_here

    try:
        # A session that a test starts may inherit the name of the file in which the session of
        # that test is writing; emptying that would lose what it has seen.
        if not path or _same_file(path, environment.value(environment.LEDGER)):
            made = make_ledger()
            config.add_cleanup(only_here(lambda: remove_ledger(made.path)))
            return made.path
        Ledger(path).create()
    except LedgerError as error:
        raise pytest.UsageError(
            f"the ledger cannot be written: {error}; name another file with --cuda-fork-ledger"
        ) from None
    except OSError as error:
        raise pytest.UsageError(
            f"the ledger cannot be written: {error}; name another file with --cuda-fork-ledger, or "
            "another folder with TMPDIR"
        ) from None
    return path


def _same_file(path: str, other: str) -> bool:
    try:
        return samefile(path, other)
    except OSError:
        return False


def resolve_device(device: Device) -> str:
    """Return "real", "none" or the phantom's face for this machine.

    Raises:
        pytest.UsageError: the real driver was asked for, and there is none.

    """
    try:
        return devices.resolve(device)
    except ValueError as error:
        raise pytest.UsageError(f"--cuda-fork-device={error}") from None
