"""Sessions whose tests write down what they saw, to compare it between processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.isolation_compare import Sessions
from tests.support.isolation_plugins import write

_TOOL = """
import json
def note(value):
    with open(WRITTEN, "a") as file:
        file.write(json.dumps(value) + "\\n")
"""


def run_noting(
    path: Path, method: str, files: dict[str, str], *options: str, **kwargs: Any
) -> list[Any]:
    """Run a session by a method of isolation, and return what its tests noted.

    Args:
        path: the folder of the session.
        method: how its tests are isolated; "" for one process.
        files: its files; ``from tool import note`` gives a test the function that notes a value.
        options: what pytest is called with.
        kwargs: what else ``Sessions`` is to know.

    """
    (path / "written").unlink(missing_ok=True)
    tool = f"WRITTEN = {str(path / 'written')!r}\n{_TOOL}"
    write(path, {"tool.py": tool, "pytest.ini": "[pytest]\n", **files})
    # What is noted is compared as values: no order of a set needs to be that of another process.
    env = {"PYTHONHASHSEED": "random", **kwargs.pop("env", {})}
    seen = Sessions(path, env=env, **kwargs).run(method, *options)
    assert seen.status[0] == "0", "\n".join(seen.stdout)
    return [json.loads(line) for line in (path / "written").read_text().splitlines()]
