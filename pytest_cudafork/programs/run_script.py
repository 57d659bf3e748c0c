"""run_script: a script in a fresh interpreter, with an isolating environment, under the watch.

Covered: how it ended, its output (binary, endless), its time limit, what it leaves running, the
touches and forks of it and of every Python process that descends from it, what ``multiprocessing``
started there and by which method. Not covered: what is not Python is seen only where the driver
sees it, and a Python process that is told to leave its start-up out (-I, -E, -S) is not watched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from pytest_cudafork.check.state import state_here
from pytest_cudafork.check.watch import current_watch
from pytest_cudafork.errors import CudaForkWarning, ScriptTimeout
from pytest_cudafork.observe.handed_on import WatchSettings, variables_for_program
from pytest_cudafork.observe.observer import Observer
from pytest_cudafork.process.descendants.caretaker_client import Caretaker
from pytest_cudafork.programs.command import command_of, never_ran
from pytest_cudafork.programs.deeds import read_deeds
from pytest_cudafork.programs.isolated_env import changes, compose
from pytest_cudafork.programs.own_ledger import new_ledger, seen_device
from pytest_cudafork.programs.program import STACKS_ON_ABORT, ProgramRun, run_program
from pytest_cudafork.programs.result import ScriptResult, command_name
from pytest_cudafork.settings import Level
from pytest_cudafork.settings.arguments import check_time_limit, check_variables, input_bytes


def run_script(
    script: str | os.PathLike[str],
    *args: object,
    env: Mapping[str, str | None] | None = None,
    method: str | None = "spawn",
    timeout: float | None = 60.0,
    cwd: str | os.PathLike[str] | None = None,
    stdin: str | bytes = b"",
    device: str | None = None,
    allow_findings: bool = False,
    caretaker: Caretaker | None = None,
    folder: str | None = None,
) -> ScriptResult:
    """Run a script, or a module as ``python -m`` does, in a fresh interpreter, and watch it.

    The environment is ``isolated_env(method=method)`` with ``env`` over it, and nothing else makes
    the script obey: whether it does, ``ScriptResult.start_method`` and ``starts`` tell.

    Args:
        script: A path, or the name of a module.
        *args: Texts, paths or numbers: its arguments.
        env: Variables over those of the isolating environment; None takes one away.
        method: The start method that the environment asks for; None: no word about it.
        timeout: Seconds after which it is ended with all that descends from it; None: no limit.
        cwd: Its working directory; None: this one.
        stdin: What it can read from its standard input.
        device: The driver that it sees, as in ``--cuda-fork-device``; None: the session's, or the
            one that is here, else the phantom that shows no device.
        allow_findings: Whether to return a result with findings (a fork while CUDA is initialized,
            a touch in a child of such a fork) instead of raising the first of them.
        caretaker: Who ends the script if this process dies; None: one is started for it.
        folder: Where the ledger of the run is kept until the end; None: among temporary files.

    Raises:
        CudaForkError: It forked, or tried to, while CUDA was initialized.
        PoisonedTouchError: A child of such a fork touched CUDA.
        ScriptTimeout: It did not end in time; ``result`` is what it did until then.
        FileNotFoundError, ModuleNotFoundError, IsADirectoryError: There is nothing to run.
        NotADirectoryError: ``cwd`` is no folder.
        TypeError, ValueError: An argument is none that can be used; the message says which.

    """
    __tracebackhide__ = True
    check_time_limit(timeout)
    place = _folder_to_run_in(cwd)
    check_variables("env", {} if env is None else env)
    text = input_bytes(stdin)
    command = command_of(script, args, place)
    variables = compose(method, os.environ, env or {})
    run = functools.partial(
        run_program, command, cwd=place, stdin=text, timeout=timeout, caretaker=caretaker
    )
    with contextlib.ExitStack() as undo:
        settings, observer = _new_watch(undo, device, folder)
        ended, result = _watched(run, command, variables, method, settings, observer)
    _complain(result, ended, timeout)
    if not allow_findings:
        result.check_findings()
    return result


def _folder_to_run_in(cwd: str | os.PathLike[str] | None) -> str | None:
    """Return the path of a folder.

    Raises:
        TypeError: It is no path of text.
        NotADirectoryError: It is no folder.

    """
    if cwd is None:
        return None
    place = os.fspath(cwd) if isinstance(cwd, str | os.PathLike) else None
    if not isinstance(place, str):
        raise TypeError(f"cwd={cwd!r}: a folder is given by its path, a text or a pathlib.Path")
    if not os.path.isdir(place):
        raise NotADirectoryError(f"cwd={place!r}: there is no such folder")
    return place


def _watched(
    run: Callable[[Mapping[str, str]], ProgramRun],
    command: list[str],
    variables: Mapping[str, str],
    method: str | None,
    settings: WatchSettings,
    observer: Observer,
) -> tuple[ProgramRun, ScriptResult]:
    """Run a program in an environment that has it watched, and read what it did."""
    given = {**STACKS_ON_ABORT, **variables}
    given.update(variables_for_program(settings, str(os.getpid()), variables))
    parent = state_here(current_watch())
    ended = run(given)
    level = Level(settings.level)
    lost = observer.lost_records()
    deeds = read_deeds(observer.records(), ended.pid, given, level, lost)
    result = ScriptResult(
        command=tuple(command),
        environment=changes(os.environ, given),
        method=method,
        parent=parent,
        exitcode=None if ended.ending.status_lost else ended.ending.exitcode,
        stdout_bytes=ended.stdout.data,
        stderr_bytes=ended.stderr.data,
        seconds=ended.ending.seconds,
        left=ended.left,
        deeds=deeds,
        simulated=observer.simulated,
    )
    return ended, result


def _new_watch(
    undo: contextlib.ExitStack, device: str | None, folder: str | None
) -> tuple[WatchSettings, Observer]:
    """Make a ledger for one run, and the settings of the watch that writes it."""
    outer = current_watch()
    here = outer.observer.settings if outer is not None else None
    settings = WatchSettings(
        new_ledger(undo, folder),
        here.device if device is None and here is not None else seen_device(device),
        here.level if here is not None else Level.FORK.value,
        here.allow if here is not None else (),
        detailed=True,
    )
    return settings, Observer(settings, str(os.getpid()))


def _complain(result: ScriptResult, run: ProgramRun, timeout: float | None) -> None:
    """Say what keeps a result from being one.

    Raises:
        ScriptTimeout: Its time was up.
        ModuleNotFoundError: There is no such module.
        FileNotFoundError: The interpreter found no script after all.

    """
    __tracebackhide__ = True
    name = command_name(result.command)
    if run.ending.timed_out:
        raise ScriptTimeout(
            f"{name} did not end within its time limit of {timeout:g} s and was ended, with all "
            f"that it had started.\n\n{result}",
            timeout,
            result,
        )
    words = never_ran(result.command, run.ending.exitcode, result.stderr)
    if words:
        kind = ModuleNotFoundError if result.command[1] == "-m" else FileNotFoundError
        raise kind(f"{name} cannot be run: {words}")
    if run.pid not in result.deeds.processes:
        warnings.warn(f"{name}: {result.unseen[0]}", CudaForkWarning, stacklevel=3)


class ScriptRunner:
    """The fixture ``run_script``: the function, with what looks after a session's children.

    Ledgers are in the session's own temporary folder, which pytest removes if this process cannot.
    """

    def __init__(self, caretaker: Caretaker, folder: str | None = None) -> None:
        self._own = {"caretaker": caretaker, "folder": folder}

    def __call__(
        self, script: str | os.PathLike[str], /, *args: object, **options: Any
    ) -> ScriptResult:
        """Run a script; the options are those of ``pytest_cudafork.run_script``."""
        __tracebackhide__ = True
        return run_script(script, *args, **{**self._own, **options})
