"""A session with ``-p no:cudafork`` is one on a machine where the plugin was never installed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")

PROBE = """
import json
import os
import subprocess
import sys
import threading

CHILD = "import json, sys; print(json.dumps(sorted(sys.modules)))"


def test_probe():
    child = subprocess.run([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, check=True)
    seen = {
        "here": sorted(sys.modules),
        "child": json.loads(child.stdout),
        "environment": dict(os.environ),
        "threads": [thread.name for thread in threading.enumerate()],
        "fork": type(os.fork).__name__,
        "mapped": [line.split()[-1] for line in open("/proc/self/maps") if "cudafork" in line],
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
    }
    with open("seen.json", "w") as file:
        json.dump(seen, file)
"""
INI = "[pytest]\nfilterwarnings = ignore:Unknown config option\n"


def seen(pytester: pytest.Pytester, *args: str) -> dict[str, Any]:
    """Return what a test of a session with these arguments saw of its process and of a child."""
    pytester.makepyfile(test_probe=PROBE)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", *args)
    result.assert_outcomes(passed=1)
    found: dict[str, Any] = json.loads(Path(pytester.path, "seen.json").read_text())
    return found


def traces(found: dict[str, Any]) -> dict[str, list[str]]:
    """Return what is the plugin's in it, by the kind of trace."""
    before = dict(os.environ)
    # pytester sets these for the session that it starts
    own = ("HOME", "PYTEST_", "TMP", "USERPROFILE")
    changed = {
        name: value
        for name, value in found["environment"].items()
        if before.get(name) != value and not name.startswith(own)
    }
    if "_startup" not in changed.get("PYTHONPATH", ""):
        changed.pop("PYTHONPATH", None)
    return {
        "modules": [name for name in found["here"] if name.startswith("pytest_cudafork")],
        "modules of a child": [
            name for name in found["child"] if name.startswith("pytest_cudafork")
        ],
        "environment": sorted(changed),
        "threads": [name for name in found["threads"] if name != "MainThread"],
        "fork": [found["fork"]] if found["fork"] != "builtin_function_or_method" else [],
        "libraries": found["mapped"],
        "processes": found["children"].split(),
    }


@pytest.mark.slow
def test_nothing_is_left_behind(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    monkeypatch.setenv("PYTEST_CUDA_FORK_CHECK", "fork")  # nobody reads it
    monkeypatch.setenv("PYTEST_CUDA_FORK_DEVICE", "phantom")
    pytester.makeini(f"{INI}cuda_fork_isolate = spawn\n")
    without = traces(seen(pytester, "-p", "no:cudafork"))
    assert without == {name: [] for name in without}
    monkeypatch.setenv("PYTEST_CUDA_FORK_ISOLATE", "none")
    watched = traces(seen(pytester))
    assert {name for name, found in watched.items() if found} >= {
        "modules",
        "modules of a child",
        "environment",
        "fork",
        "libraries",
    }, "the same look at a checked session sees it"
