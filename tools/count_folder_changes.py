"""Counts how often the way through the package changes its folder, for a test and for a capture.

    python tools/count_folder_changes.py                 the code of this checkout
    python tools/count_folder_changes.py 3862bd5         that of a revision
    python tools/count_folder_changes.py --show          also print the ways, call by call

It measures how much a reader has to jump. Two small sessions run in an interpreter made for them,
in which `call_recorder` notes each call of a function of the package:

- one test that passes, with ``--cuda-fork-isolate=forkserver``. Its way is what the package does in
  the pytest process between the first and the last line of ``pytest_runtest_protocol``, and in the
  child from the fork to its end. The fork server's part and a spare child's are not on the way.
- one call of the fixture ``capture_pair`` with the software graph, on the CPU.

Calls are those of functions in files of the package, in the first thread of a process. A call made
through another library (a hook, a context manager) counts as made by the nearest function of the
package below it on the stack. What runs at import is left out; comprehensions and lambdas belong to
the function around them.

The *main line* of a way is the functions it goes through, in the order of their first calls. Later
calls of a function are left out, not what is first called in them: how often a loop waits depends
on the machine, and a reader follows a function once. Left out as well are values and words: the
functions during whose calls no function of another module is called, not even indirectly. They are
read as words, by their names: making and asking values, texts, checks, one call of the system. No
list of names says which these are, so the rule is the same before and after a move. Only calls into
``settings/``, ``compat/`` and ``errors.py``, and into the modules these were made of, are known by
name and never count, with all that they call: to read an option or a private name of pytest is no
step on a way, wherever the line stands.

Two functions that follow each other on the main line and lie in different folders are a change of
folder; one into a folder that the way has been in before is a return. A folder's own modules count
as one folder beside its subfolders; the package's top is one folder. Changes of module are counted
in the same way. ``everything`` is the same count with values and words left in. Each process's way
is counted by itself; the sums are over the processes of a way.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkout import PACKAGE, check_out, copy_checkout, make_interpreter

SECONDS = 300.0
# Left out by name, at any depth: folders and files as they are now, then as they were.
_NOT_ON_A_WAY = (
    *("compat/", "settings/", "errors.py"),
    *("child_errors.py", "gpus/wishes.py", "markers.py", "observe/environment.py", "option.py"),
    *("options.py", "options_imports.py"),
    *("isolate/cov_plugin.py", "isolate/other_plugins.py", "isolate/peer_words.py"),
)
_ISOLATED = """
import call_recorder
import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    call_recorder.begin("way")
    try:
        return (yield)
    finally:
        call_recorder.end("way")
"""
_PASSES = """
import call_recorder


def test_passes():
    call_recorder.begin("body")
"""
_CAPTURES = """
import call_recorder
import pytest
import torch


class State:
    def __init__(self, x):
        self.x = x
        self.scale = None


def test_captures(capture_pair, graph_backend):
    assert graph_backend.name == "software"
    x = torch.ones(4, 8)
    weight = torch.ones(8, 8)

    def create(desc, warmup):
        state = State(x[:desc])

        def forward():
            if state.scale is None:
                state.scale = torch.full_like(state.x, 2.0)
            return torch.relu((state.x * state.scale) @ weight)

        return forward, state

    call_recorder.begin("way")
    capture_pair(create, 4, persistent={"x": x}, vary=[lambda: x.fill_(3.0)])
    call_recorder.end("way")
"""


@dataclass(frozen=True)
class Call:
    """One call: its number, that of the call it was made in (0: none), the file, the function."""

    number: int
    caller: int
    file: str
    function: str

    @property
    def folder(self) -> str:
        """The folder of the module below the package; "" for the package's top."""
        return os.path.dirname(self.file)


@dataclass(frozen=True)
class Count:
    """Changes along a way: how many, how many of them to where it has been, how many places."""

    changes: int
    returns: int
    places: int


def main_line(calls: Sequence[Call], *, whole: bool = False) -> list[Call]:
    """Return the first call of each function in order; with ``whole`` values and words, too."""
    left_out: set[int] = set()
    for call in calls:
        if call.caller in left_out or call.file.startswith(_NOT_ON_A_WAY):
            left_out.add(call.number)
    calls = [call for call in calls if call.number not in left_out]
    modules: dict[int, set[str]] = {call.number: {call.file} for call in calls}
    for call in reversed(calls):  # a call's own calls come after it
        if call.caller in modules:
            modules[call.caller] |= modules[call.number]
    first: dict[tuple[str, str], Call] = {}
    wide = set()
    for call in calls:
        function = (call.file, call.function)
        first.setdefault(function, call)
        if len(modules[call.number]) > 1:
            wide.add(function)
    return [call for function, call in first.items() if whole or function in wide]


def count(line: Sequence[Call], where: Callable[[Call], str]) -> Count:
    """Count the changes of folder or module along a main line."""
    places: set[str] = set()
    changes = returns = 0
    before = None
    for call in line:
        place = where(call)
        if before is not None and place != before:
            changes += 1
            returns += place in places
        places.add(place)
        before = place
    return Count(changes, returns, len(places))


def read(path: Path) -> tuple[list[Call], set[str]]:
    """Return what one process recorded: the calls of its way (all, if it has no end), its marks."""
    calls: list[Call] = []
    marks = set()
    within = None
    for line in path.read_text(encoding="utf-8").splitlines():
        first, *rest = json.loads(line)
        if first == "begin":
            marks.add(rest[0])
            if rest[0] == "way":
                within = len(calls)
        elif first == "end":
            marks.add("end")
            calls, within = calls[within or 0 :], len(calls)
            break
        else:
            calls.append(Call(first, *rest))
    return calls, marks


def record(code: Path, python: Path, files: dict[str, str], *options: str) -> dict[str, list[Call]]:
    """Run a session of one test and return the calls of "pytest" and, if there is one, "child".

    Raises:
        RuntimeError: the test did not pass.

    """
    folder = python.parent.parent / "calls"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    settings = json.dumps({"package": str(code / PACKAGE)})
    (folder / "settings.json").write_text(settings, encoding="utf-8")
    with tempfile.TemporaryDirectory() as project:
        for name, text in {"pytest.ini": "[pytest]\n", **files}.items():
            Path(project, name).write_text(text, encoding="utf-8")
        own = ("PYTEST_", "_CUDAFORK_", "PYTHON")
        env = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        command = [str(python), "-m", "pytest", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, "-p", f"{PACKAGE}.plugin", *options],
            cwd=project,
            env={**env, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    if done.returncode != 0 or "1 passed" not in done.stdout:
        raise RuntimeError(f"pytest ended with status {done.returncode}:\n{done.stdout}")
    found: dict[str, list[Call]] = {"pytest": []}
    for path in folder.glob("*.jsonl"):
        calls, marks = read(path)
        if "body" in marks:
            found["child"] = _whole_life(path)
        elif "way" in marks:
            found["pytest"] = calls
    return found


def _whole_life(path: Path) -> list[Call]:
    records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Call(*each) for each in records if isinstance(each[0], int)]


def install_recorder(python: Path) -> None:
    """Have each process of an interpreter made by `make_interpreter` record its calls."""
    site = next((python.parent.parent / "lib").glob("python*/site-packages"))
    shutil.copy(Path(__file__).with_name("call_recorder.py"), site)
    (site / "call_recorder.pth").write_text("import call_recorder\n", encoding="utf-8")


def measure(revision: str) -> dict[str, dict[str, list[Call]]]:
    """Record both ways of a revision ("": this checkout as it is)."""
    with tempfile.TemporaryDirectory(prefix="folder-changes-") as folder:
        code = Path(folder).resolve() / "checkout"
        if revision:
            check_out(code, revision)
        else:
            copy_checkout(code)
        python = make_interpreter(code)
        install_recorder(python)
        isolated = {"conftest.py": _ISOLATED, "test_one.py": _PASSES}
        captured = {"test_one.py": _CAPTURES}
        return {
            "isolated test": record(code, python, isolated, "--cuda-fork-isolate=forkserver"),
            "capture_pair": record(code, python, captured, "--cuda-fork-graphs=software"),
        }


def figures(processes: dict[str, list[Call]], *, whole: bool) -> dict[str, int]:
    """Return the figures of one way, summed over its processes; places are counted once."""
    lines = [main_line(calls, whole=whole) for calls in processes.values()]
    found = {"functions": sum(map(len, lines))}
    kinds: dict[str, Callable[[Call], str]] = {
        "folder": lambda call: call.folder,
        "module": lambda call: call.file,
    }
    for kind, where in kinds.items():
        counts = [count(line, where) for line in lines]
        found[f"{kind}_changes"] = sum(each.changes for each in counts)
        found[f"{kind}_returns"] = sum(each.returns for each in counts)
        found[f"{kind}s"] = len({where(call) for line in lines for call in line})
    return found


def show(name: str, calls: Sequence[Call]) -> None:
    """Print a main line, indented by depth, a mark where the folder changes."""
    print(f"\n{name}")
    depths: dict[int, int] = {}
    for call in calls:
        depths[call.number] = depths.get(call.caller, -1) + 1
    before = None
    for call in main_line(calls):
        mark = " " if before in (None, call.folder) else "*"
        print(f"{mark} {'  ' * depths[call.number]}{call.file} {call.function}")
        before = call.folder


def main() -> None:
    """Record, print a table and the JSON line."""
    parser = argparse.ArgumentParser(description="Changes of folder along two ways.")
    parser.add_argument("revision", nargs="?", default="", help="default: this checkout as it is")
    parser.add_argument("--show", action="store_true", help="print the main lines, too")
    options = parser.parse_args()
    ways = measure(options.revision)
    if options.show:
        for way, processes in ways.items():
            for name, calls in processes.items():
                show(f"{way}, in the process {name!r}", calls)
        print()
    data: dict[str, Any] = {}
    rows = []
    for way, processes in ways.items():
        parts = {way: processes}
        if len(processes) > 1:
            parts |= {f"{way}: {name}": {name: calls} for name, calls in processes.items()}
        for name, part in parts.items():
            rows.append((name, figures(part, whole=False)))
            data[name] = rows[-1][1]
        rows.append((f"{way}: everything", figures(processes, whole=True)))
        data[rows[-1][0]] = rows[-1][1]
    columns = list(rows[0][1])
    print(f"| {'way':<25} | {' | '.join(name.replace('_', ' ') for name in columns)} |")
    print(f"| {'-' * 25} | {' | '.join('-' * (len(name) - 1) + ':' for name in columns)} |")
    for name, found in rows:
        cells = (str(found[column]).rjust(len(column)) for column in columns)
        print(f"| {name:<25} | {' | '.join(cells)} |")
    print(json.dumps({"topic": "folder_changes", "revision": options.revision, "ways": data}))


if __name__ == "__main__":
    main()
