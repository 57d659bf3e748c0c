"""What a process reports that has imported a module, for tests that judge it or pass it on."""

from __future__ import annotations

from pytest_cudafork.imports.values.import_result import ImportResult

CLEAN_IMPORT = ImportResult(
    kind="imported",
    error="",
    reason="",
    traceback="",
    seconds=0.5,
    loaded=["pkg"],
    state="clean",
    why="",
    threads=1,
    changed=False,
    running=[],
    waited=0.0,
)
"""A module was imported, and nothing happened to the process."""
