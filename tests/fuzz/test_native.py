"""The entry points of the native libraries, called in random order by several threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fuzz import native
from tests.support.native import needs_libraries


def test_every_entry_point_that_answers_is_called_with_what_it_takes() -> None:
    written = native.calls(native.entry_points())
    assert "(void)cuDeviceGetName(some_buffer(c), some_size(c), some_number(c));" in written
    assert "(void)cuCtxSetCurrent(some_handle(c));" in written
    assert "(void)cudafork_remember(some_text(c), some_text(c));" in written
    assert '{"nvmlDeviceGetMemoryInfo", call_nvmlDeviceGetMemoryInfo},' in written
    assert len(native.entry_points()) > 60


@needs_libraries
@pytest.mark.slow
def test_threads_that_touch_do_not_race(tmp_path: Path) -> None:
    try:
        program = native.build("thread", tmp_path)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the compiler here has no ThreadSanitizer")
    done = native.run("thread", [str(program), "1", "3", "1"], tmp_path / "ledger", 1)
    assert done["failure"] == ""
    assert done["records"]
