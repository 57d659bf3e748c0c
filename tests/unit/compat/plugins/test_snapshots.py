"""Names of syrupy and inline-snapshot, and that isolated tests only compare their snapshots."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_cudafork.compat.plugins import snapshots

USES = SimpleNamespace(fixturenames=["own", "snapshot"])
DOES_NOT = SimpleNamespace(fixturenames=["tmp_path"])


def config(*plugins: str, **options: Any) -> Any:
    """A session with these plugins and options."""
    manager = SimpleNamespace(has_plugin=lambda name: name in plugins)
    return SimpleNamespace(option=SimpleNamespace(**options), pluginmanager=manager)


def only_compare(made: Any, *isolated: Any) -> str | None:
    return snapshots.only_compare(made, isolated)


@pytest.mark.parametrize("name", ["update_snapshots", "update_new_snapshots_only"])
def test_an_update_is_taken_back_and_named(name: str) -> None:
    made = config("syrupy", **{name: True})
    option = only_compare(made, DOES_NOT, USES)
    assert option is not None
    assert option.startswith("--snapshot-update")
    assert getattr(made.option, name) is False
    assert only_compare(made, USES) is None


def test_nobody_is_told_of_unused_snapshots_where_that_is_not_known() -> None:
    made = config("syrupy", warn_unused_snapshots=False, disable_unused_snapshots=False)
    assert only_compare(made, DOES_NOT) is None
    assert made.option.warn_unused_snapshots is False  # no isolated test compares any
    assert only_compare(made, USES) is None
    assert made.option.warn_unused_snapshots is made.option.disable_unused_snapshots is True
    older = config("syrupy", warn_unused_snapshots=False)
    assert only_compare(older, USES) is None
    assert vars(older.option) == {"warn_unused_snapshots": True}


def test_without_the_plugins_their_options_are_anybodys() -> None:
    made = config(update_snapshots=True, inline_snapshot="fix")
    assert only_compare(made, USES) is None
    assert made.option.update_snapshots is True


@pytest.mark.parametrize(
    ("flags", "writes"),
    [("create", True), ("report,fix", True), ("report", False), ("", False), (None, False)],
)
def test_snapshots_in_the_source_are_written_by_some_flags(flags: Any, writes: bool) -> None:
    made = config("inline-snapshot-plugin", inline_snapshot=flags)
    assert only_compare(made, DOES_NOT) == (f"--inline-snapshot={flags}" if writes else None)
    assert only_compare(made) is None


def test_syrupy_still_has_the_names(pytester: pytest.Pytester) -> None:
    pytest.importorskip("syrupy")
    made = pytester.parseconfig("-p", "syrupy", "--snapshot-update")
    assert only_compare(made, USES) == "--snapshot-update"
    known = {"warn_unused_snapshots", *snapshots.READ_ONLY} - {"inline_snapshot"}
    assert vars(made.option).keys() >= known


def test_inline_snapshot_still_has_the_names(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # it writes nothing there
    pytest.importorskip("inline_snapshot")
    made = pytester.parseconfigure(
        "-p", "inline_snapshot.pytest_plugin", "--inline-snapshot=create"
    )
    assert only_compare(made, DOES_NOT) == "--inline-snapshot=create"
