"""What plugins keep until their session ends that compare snapshots: syrupy and inline-snapshot.

A test compares in its own process, and fails there where it should. But which snapshots were used,
and what is to be written, both plugins note in that process, and settle when the session of the
pytest process ends: snapshots that only tests of other processes use would be unused there.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

_SYRUPY = "syrupy"
_SYRUPY_FIXTURE = "snapshot"
_SYRUPY_UPDATES = {
    "update_snapshots": "--snapshot-update",
    "update_new_snapshots_only": "--snapshot-update-new-only",
}
_SYRUPY_UNUSED_IS_WELL = ("warn_unused_snapshots", "disable_unused_snapshots")
"""Options by which snapshots that are not used do not fail the session; the second is newer."""
_INLINE = "inline-snapshot-plugin"
_INLINE_OPTION = "inline_snapshot"
_INLINE_WRITES = {"create", "fix", "review", "trim", "update"}

READ_ONLY: dict[str, object] = {**dict.fromkeys(_SYRUPY_UPDATES, False), _INLINE_OPTION: None}
"""The options of a process whose tests compare snapshots, and write none."""


def only_compare(config: pytest.Config, isolated: Sequence[pytest.Item]) -> str | None:
    """Let the session of isolated tests compare snapshots, and neither write nor delete any.

    Returns:
        The option that asked for more, or None.

    """
    options, manager = config.option, config.pluginmanager
    if isolated and manager.has_plugin(_INLINE):
        flags = getattr(options, _INLINE_OPTION, None) or ""
        if not _INLINE_WRITES.isdisjoint(flags.split(",")):
            return f"--inline-snapshot={flags}"  # the plugin has read it, and refuses xdist itself
    if not manager.has_plugin(_SYRUPY) or not any(map(_uses_syrupy, isolated)):
        return None
    for name in _SYRUPY_UNUSED_IS_WELL:
        if hasattr(options, name):
            setattr(options, name, True)
    for name, option in _SYRUPY_UPDATES.items():
        if getattr(options, name, False):
            setattr(options, name, False)
            return option
    return None


def _uses_syrupy(item: pytest.Item) -> bool:
    return _SYRUPY_FIXTURE in getattr(item, "fixturenames", ())
