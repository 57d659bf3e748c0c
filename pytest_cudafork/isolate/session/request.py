"""What a child is told: how to make a session like this one, and which test to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import cov
from pytest_cudafork.compat.unpatched import contextlib, fcntl, os, pickle
from pytest_cudafork.isolate import coverage_data, earlier_tests, incremental, item_names, live_text
from pytest_cudafork.isolate.passed_phases import expected_sign
from pytest_cudafork.isolate.session import other_plugins
from pytest_cudafork.process import child
from pytest_cudafork.process.protocol import frames, messages

SPAWNED_TESTS = "pytest_cudafork.isolate.child.pytest_session:run_session"
"""The job of a fresh interpreter that runs tests."""
INHERITED = pytest.StashKey[bytes]()
"""What the child of an item inherits if its body alone runs there (``messages.Run.inherits``)."""
COLLECTION = "pytest_cudafork.isolate.child.server_session:prepare"
"""What the fork server does before it forks."""


def session_request(
    config: pytest.Config, targets: list[str], left_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the request for a process that collects ``targets`` with this session's options.

    ``left_out`` are files that it must not import.
    """
    options = dict(vars(config.option))
    options.pop("file_or_dir", None)
    options["rootdir"] = str(config.rootpath)
    # without an ini file here the child must not find another one
    options["inifilename"] = str(config.inipath or os.devnull)
    # derived from the ini file, where none is given
    options["confcutdir"] = str(pytest_internals.confcutdir(config) or config.rootpath)
    basetemp = make_basetemp(config)
    if basetemp is not None:  # else a test that needs one finds out there why there is none
        options["basetemp"] = None
    options["log_file_mode"] = "a"
    pickled = {}
    for name, value in options.items():
        try:
            pickled[name] = pickle.dumps(value)
        except Exception:  # an object some plugin keeps there; its default has to do
            continue
    return {
        "options": pickled,
        "args": [str(arg) for arg in config.args],
        "invocation_dir": str(config.invocation_params.dir),
        "invocation_args": [str(arg) for arg in config.invocation_params.args],
        "inipath": None if config.inipath is None else str(config.inipath),
        "targets": targets,
        "left_out": left_out,
        "basetemp": basetemp or "",
        "temporary": _temporary_folder(),
        "workerinput": frames.plain(getattr(config, "workerinput", None)),
        "log_file": _log_file(config),
        "terminal": live_text.terminal_of(config),
        "coverage": coverage_data.settings(),
        "pytest_cov": cov.is_measuring(config),
    }


def _log_file(config: pytest.Config) -> str | None:
    """Return the file of ``--log-file``, or None; what is written here goes to its end from now on.

    Children append to it, and a file that is not open for that is written where this process has
    come to: over what they have written.
    """
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    handler: Any = getattr(plugin, "log_file_handler", None)
    name = getattr(handler, "baseFilename", os.devnull)
    if name == os.devnull:
        return None
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is no file, or closed
        fd = handler.stream.fileno()
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return str(name)


def _temporary_folder() -> str | None:
    """Return the folder for temporary files that was found here; None if none was looked for."""
    found = getattr(sys.modules.get("tempfile"), "tempdir", None)
    return found if isinstance(found, str) else None


def make_basetemp(config: pytest.Config) -> str | None:
    """Make the session's temporary directory now: a child would make one of its own.

    Returns "" in a session without, and None where it cannot be made: most tests need none.
    """
    try:
        return str(pytest_internals.make_basetemp(config) or "")
    except OSError:
        return None


def target_of(item: pytest.Item) -> str:
    """Return what to collect for a test: its function where the name is plain, else its file."""
    path, *names = item_names.identity(item)
    plain = all(part.isidentifier() for part in (name.partition("[")[0] for name in names))
    if not plain or "[" in path or "::" in path or not isinstance(item, pytest.Function):
        return path
    if incremental.is_step(item):  # those before it have to be known there
        return path
    return "::".join([path, *(name.partition("[")[0] for name in names)])


def work_order(
    item: pytest.Item,
    following: pytest.Item | None,
    after: Sequence[pytest.Item | None] = (),
    *,
    env: dict[str, str],
    short: bool = False,
) -> messages.Run:
    """Return the message that makes a child run a test.

    Args:
        item: The test.
        following: The one it will run next, or None if this is its last.
        after: Those after that which it goes on to by itself, as in ``messages.Run``.
        env: Variables it has beyond those of this process.
        short: Whether phases that pass may be told by their times alone.

    """
    named = [None if one is None else item_names.name_of(one) for one in (following, *after)]
    signs = None
    everyone = (item, following, *after)
    if after or short:
        signs = [None if one is None else expected_sign(one) for one in everyone]
    return messages.Run(
        test=item_names.name_of(item),
        next=named[0],
        surroundings=child.surroundings(env),
        position=live_text.position_of(item.config),
        reruns=other_plugins.reruns_for(item),
        inherits=item.stash.get(INHERITED, None),
        ahead=named[1:] if after else None,
        signs=signs,
        earlier=earlier_tests.pack(everyone),
    )
