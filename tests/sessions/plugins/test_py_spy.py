"""What py-spy reads of processes that hang, or that are looked at from outside."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytest_cudafork.attach.examine import examine
from pytest_cudafork.process import native_stacks
from tests.support.attached import running
from tests.support.death import HANGS_IN_C, METHODS, run_deaths, told

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")


def skip_if_refused(words: str) -> None:
    """Skip a test where py-spy says that the system lets it read no other process."""
    if re.search("py-spy failed .*(ermission|ptrace)", words):
        pytest.skip(f"this machine lets no process read another one: {words}")


def test_it_is_the_one_beside_the_interpreter() -> None:
    assert native_stacks.py_spy() == str(Path(sys.executable).with_name("py-spy"))


@pytest.mark.parametrize("method", METHODS)
def test_the_function_in_c_that_hangs_is_named(pytester: pytest.Pytester, method: str) -> None:
    text = told(run_deaths(pytester, method, HANGS_IN_C), "test_c")
    skip_if_refused(text)
    assert "pause (libc" in text
    assert "test_c (test_d.py" in text


def test_where_the_threads_of_a_server_are(tmp_path: Path) -> None:
    with running(tmp_path, watched=False) as server:
        found = examine(server.pids[0])
    skip_if_refused(found.why_no_stacks)
    frames = [frame for stack in found.stacks for frame in stack.frames]
    assert [each for each in frames if each.endswith("server.py:12 in wait_for_requests")], found
