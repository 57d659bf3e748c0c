"""The pytest configuration of a process that works for another: made from that one's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pytest_cudafork.compat import pytest_internals
from pytest_cudafork.compat.plugins import rerunfailures, snapshots
from pytest_cudafork.compat.unpatched import contextlib, io, os, pickle

_QUIET_OPTIONS: Mapping[str, Any] = {
    # one process, no debugger
    "numprocesses": None,
    "maxprocesses": None,
    "dist": "no",
    "distload": False,
    "tx": [],
    "px": [],
    "looponfail": False,
    "usepdb": False,
    "trace": False,
    # which tests run, and when to stop, is the parent's affair
    "maxfail": 0,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "collectonly": False,
    # files that the parent writes
    "report_log": None,
    "htmlpath": None,
    "json_report": False,
    # pytest-bdd takes another terminal than pytest's own for an error
    "gherkin_terminal_reporter": False,
    # the child writes its own result beside those that are there
    "clean_alluredir": False,
    "pastebin": None,
    "debug": None,
    # what is compared here, the parent cannot write
    **snapshots.READ_ONLY,
    # pytest-cov would erase what the session has measured; see coverage_data.py and cov_plugin.py
    "cov_source": [],
}
"""Options of pytest and known plugins which must differ in the child; those absent stay absent."""

_NO_REWRITE_WARNING = (
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning"
)

_APPENDS_LOG = pytest.version_tuple >= (8, 0)
"""Whether pytest has an option for it; before, it empties the file that the parent writes."""


def append_log(config: pytest.Config, path: str | None) -> None:
    """Let the log go to the end of the parent's file ``path``, where no option does it."""
    plugin: Any = config.pluginmanager.get_plugin("logging-plugin")
    if path is not None and plugin is not None and not _APPENDS_LOG:
        plugin.log_file_handler.setStream(io.open(path, "a", encoding="utf-8"))


def _last_words(plugins: Sequence[str]) -> list[str]:
    """Return what ``-p`` says in the end, where the ini file loads a plugin and the user does not.

    pytest goes through them twice here, and would load once more what it has taken away.
    """
    last = {name.removeprefix("no:").removeprefix("pytest_"): name for name in plugins}
    return [name for name in dict.fromkeys(plugins) if name in last.values()]


def make_config(request: dict[str, Any]) -> pytest.Config:
    """Return a configuration with the parent's options, root directory and ini file.

    ``request`` is what the parent's ``session_request`` returned.
    """
    options: dict[str, Any] = {}
    for name, pickled in request["options"].items():
        with contextlib.suppress(Exception):  # a type of a conftest that is not loaded yet
            options[name] = pickle.loads(pickled)
    plugins = _last_words(options.get("plugins") or [])
    options["plugins"] = []
    args = [part for name in plugins for part in ("-p", name)]
    args += request["args"]
    options.update((name, value) for name, value in _QUIET_OPTIONS.items() if name in options)
    # this package was imported before pytest could rewrite its asserts, of which it needs none;
    # with -W error the warning of that would end the session
    options["pythonwarnings"] = [*(options.get("pythonwarnings") or []), _NO_REWRITE_WARNING]
    if not _APPENDS_LOG:
        options["log_file"] = os.devnull
    config = pytest.Config.fromdictargs(options, args)
    terminal = config.pluginmanager.get_plugin("terminal")
    if terminal is not None:  # its options must be there, it must not show anything
        config.pluginmanager.unregister(terminal)
    if request["inipath"] is None:
        pytest_internals.forget_ini_file(config)
    config.invocation_params = pytest.Config.InvocationParams(
        args=request["invocation_args"], plugins=None, dir=config.invocation_params.dir
    )
    config.args = list(request["targets"])
    if request["workerinput"] is not None:
        config.workerinput = request["workerinput"]  # type: ignore[attr-defined]
        config.workeroutput = {}  # type: ignore[attr-defined]
    rerunfailures.count_without_server(config)
    return config
