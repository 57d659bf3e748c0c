"""Closed standard descriptors: nothing gets their numbers, and the engine runs without them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sample_engine.process.standard_streams import replace_closed_streams
from tests.engine.support.process import HANG_SECONDS, PROJECT

SUBSETS = [each for count in (1, 2, 3) for each in itertools.combinations((0, 1, 2), count)]

PROGRAM = """
import json, os, sys
closed = json.loads(sys.argv[1])
for fd in closed:
    os.close(fd)
from sample_engine import LLM, SamplingParams
from tests.engine.support.process import Script
with LLM(core_factory=Script(tokens_per_step=2), worker_method=sys.argv[2]) as llm:
    os.write(2, b"native code writes here\\n" * 9)
    text = llm.generate("ab", SamplingParams(max_tokens=5)).pop().text
with open(sys.argv[3], "w") as file:
    file.write(text)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_an_engine_runs_where_any_of_them_are_closed(method: str, tmp_path: Path) -> None:
    for number, closed in enumerate(SUBSETS):
        if method != "fork" and closed not in {(2,), (0, 1, 2)}:
            continue
        answer = tmp_path / str(number)
        command = [sys.executable, "-c", PROGRAM, json.dumps(closed), method, str(answer)]
        subprocess.run(command, cwd=PROJECT, timeout=HANG_SECONDS, check=True, capture_output=True)
        assert answer.read_text(encoding="utf-8") == "ababa", closed


@pytest.mark.parametrize("closed", SUBSETS)
def test_what_is_closed_leads_nowhere_here_and_in_children(closed: tuple[int, ...]) -> None:
    program = f"""
import os, subprocess, sys
reading, writing = os.pipe()
told = os.dup(1)
for fd in {closed}:
    os.close(fd)
from sample_engine.process.standard_streams import fill_standard_descriptors
fill_standard_descriptors()
fill_standard_descriptors()
look = '''
import os
with open(5, "w") as told:
    print(*(os.readlink(f"/proc/self/fd/{{fd}}") for fd in (0, 1, 2)), file=told)
'''
os.dup2(told, 5)
subprocess.run([sys.executable, "-c", look], pass_fds=[5], check=True)
os.write(5, b"%d" % os.dup(0))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=PROJECT,
        timeout=HANG_SECONDS,
        check=True,
        stdin=subprocess.PIPE,
        capture_output=True,
    )
    *paths, free = done.stdout.decode().split()
    assert [path == os.devnull for path in paths] == [fd in closed for fd in (0, 1, 2)]
    assert int(free) > 5, "no other descriptor was kept"


def test_streams_that_are_closed_are_replaced_and_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = sys.stdout
    monkeypatch.setattr(sys, "stderr", None)
    replace_closed_streams("stdout", "stderr")
    assert sys.stdout is before
    with sys.stderr as replaced:
        replaced.write("nobody reads this")
