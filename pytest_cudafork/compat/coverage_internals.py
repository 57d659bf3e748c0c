"""What the plugin uses of coverage.py that has no public name.

A forked child goes on with the measurement it has inherited, into data of its own; coverage.py
itself only knows processes that write a file each. Nothing here imports coverage.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

COLLECTOR = "_collector"
INSIDE = "_inorout"
CONTEXT = "_current_context"
DATA = "_data"
SUFFIX = "_data_suffix_specified"
WARNINGS = ("_warn_no_data", "_warn_unimported_source")


def redirect_collector(measurement: Any, data: Any) -> Any:
    """Let a running measurement (``coverage.Coverage``) collect into ``data`` from now on.

    What was collected up to here is dropped: the parent of a forked child knows it. Uses the
    measurement's ``_collector``, that one's ``data``, ``tracers``, ``data_lock`` and ``covdata``,
    and ``reset_activity`` of the tracers.

    Returns:
        What it has collected into so far. Keep it: its end would close a database that belongs to
        the parent.

    """
    collector = getattr(measurement, COLLECTOR)
    if getattr(collector, "data_lock", None) is not None:
        # a thread of the parent may have held it when it forked
        collector.data_lock = threading.Lock()
    for measured in collector.data.values():
        measured.clear()  # in place: frames that are under way add to it
    for tracer in collector.tracers:
        tracer.reset_activity()
    before = getattr(collector, "covdata", None)
    collector.use_data(data, measurement.config.context)
    return before


def flush(measurement: Any) -> None:
    """Bring what was collected into the data of a measurement."""
    getattr(measurement, COLLECTOR).flush_data()


def packages_never_imported(measurement: Any) -> list[str]:
    """Return coverage's own list of the packages it was to measure and has not seen yet.

    ``source_pkgs_unmatched`` of ``_inorout``: at its end it warns of those that are left in it.
    Empty where coverage keeps none.
    """
    inside = getattr(measurement, INSIDE, None)
    found = getattr(inside, "source_pkgs_unmatched", None)
    return [] if found is None else found


def replace_save(measurement: Any, save: Callable[[], None]) -> None:
    """Put ``save`` in the place of a measurement's own, which ``save_data`` still calls.

    It is called at the end of an interpreter that coverage.py has been started in (``patch =
    subprocess``: ours among them), at SIGTERM, and by ``os._exit`` and ``os.execv`` as ``patch =
    _exit, execv`` replace them; in forked processes, too.
    """
    measurement.save = save


def save_data(measurement: Any) -> None:
    """Let a measurement write its file, whatever stands in the place of its ``save``."""
    type(measurement).save(measurement)


def own_data(measurement: Any) -> Any:
    """Return the ``CoverageData`` of a measurement (``_data``).

    ``get_data`` enters files that were not run as well, which data that are empty refuse.
    """
    return getattr(measurement, DATA)


def data_suffix(measurement: Any) -> str | bool | None:
    """Return the ``data_suffix`` that a measurement was made with (``_data_suffix_specified``)."""
    suffix: str | bool | None = getattr(measurement, SUFFIX)
    return suffix


def silence(measurement: Any) -> None:
    """Let a measurement that has not begun warn neither of missing data nor of missing sources."""
    for name in WARNINGS:
        setattr(measurement, name, False)


def warn_of_no_data(measurement: Any, warns: bool) -> bool:
    """Set whether it warns that nothing was measured (``_warn_no_data``); return what was set."""
    before: bool = getattr(measurement, WARNINGS[0])
    setattr(measurement, WARNINGS[0], warns)
    return before


def current_context(data: Any) -> str | None:
    """Return the context that a ``CoverageData`` is set to (``_current_context``)."""
    context: str | None = getattr(data, CONTEXT, None)
    return context
