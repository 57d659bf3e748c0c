"""Puts small faults into the package, one at a time, and looks whether their tests see them.

    python tools/mutants.py check            all faults of mutants.json
    python tools/mutants.py check 3 17       these two
    python tools/mutants.py pick 40          the first 40 candidates of the committed seed, as JSON

Faults are applied in a copy of the checkout, which has an interpreter of its own; the working tree
is not touched. Tests must pass without the fault, else nothing is said about it. ``check`` prints a
table and a last line of JSON, and returns 0 only if every fault dies.

``mutants.json`` says which faults (see `mutations`) and which tests kill each. Statements are found
again after a move: by the names of the statement's function and its text, anywhere in the package,
then by the text alone. Where neither finds exactly one statement, because the code now says the
same in other words, the fault is given the new words by hand::

    "found_as": {"function": "new_name", "statement": "...", "mutated": "...", "module": "..."}

(``module`` and ``function`` may be left out). Tests are found by the name of the test function
anywhere below ``tests/``; if several files have one of that name, by the name of the file, too, and
if that does not decide, all of them run. A test may name one of its parameters, ``test_a[case]``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutations
from checkout import PACKAGE, PROJECT, copy_checkout, make_interpreter

LIST = Path(__file__).with_suffix(".json")
SEED = 15
SECONDS = 600.0
"""A fault that makes its tests run longer is seen: it hangs."""
# What only a GPU reaches, what is written at a release, and the file that is no module.
_LEFT_OUT = (f"{PACKAGE}/capture/cuda/", f"{PACKAGE}/gpus/nvml", f"{PACKAGE}/_")


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class NotFoundError(Exception):
    """A statement or a test of the list is not in the code, or not once; the text says which."""


@dataclass(frozen=True)
class Spot:
    """Where a fault goes: a module's path and the one statement in it."""

    path: Path
    place: mutations.Place


def every_place(root: Path) -> list[Spot]:
    """Return each statement of the package below ``root``."""
    return [
        Spot(path, place)
        for path in sorted((root / PACKAGE).rglob("*.py"))
        for place in mutations.places(ast.parse(path.read_text(encoding="utf-8")))
    ]


def find(mutant: dict[str, Any], spots: list[Spot]) -> tuple[Spot, str]:
    """Return where a fault of the list goes now, and the text that goes there.

    Raises:
        NotFoundError: there is no such statement, or more than one.

    """
    wanted = {**mutant, **(mutant.get("found_as") or {})}
    statement = mutations.normalized(wanted["statement"])
    function = wanted["function"].rpartition(".")[2]
    same = [spot for spot in spots if spot.place.statement == statement]
    module = (mutant.get("found_as") or {}).get("module")
    if module:
        same = [spot for spot in same if str(spot.path).endswith(module)]
    inside = [spot for spot in same if spot.place.function == function]
    for found in (inside, same):
        if len(found) == 1:
            return found[0], wanted["mutated"]
    where = ", ".join(f"{spot.path.name}:{spot.place.node.lineno}" for spot in inside or same)
    raise NotFoundError(f"{len(inside or same)} statements {statement!r} ({where or 'none'})")


def test_names(root: Path) -> dict[str, list[tuple[Path, str]]]:
    """Return each test function below ``tests/``: its name to files and pytest's name in them."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in sorted((root / "tests").rglob("test_*.py")):
        if "specimens" in path.parts:
            continue
        for name, inside in _tests_in(ast.parse(path.read_text(encoding="utf-8")), ""):
            found.setdefault(name, []).append((path, inside))
    return found


def _tests_in(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _tests_in(child, f"{prefix}::{child.name}")
        elif isinstance(child, _FUNCTIONS) and child.name.startswith("test"):
            yield child.name, f"{prefix}::{child.name}"


def node_ids(mutant: dict[str, Any], names: dict[str, list[tuple[Path, str]]]) -> list[str]:
    """Return what to give to pytest for the tests that kill a fault.

    Raises:
        NotFoundError: a test is nowhere below ``tests/``.

    """
    ids = []
    for test in mutant["tests"]:
        name, bracket, case = test["name"].partition("[")
        found = names.get(name, [])
        found = [each for each in found if each[0].name == test["file"]] or found
        if not found:
            raise NotFoundError(f"no test {name!r} below tests/")
        ids += [f"{path}{inside}{bracket}{case}" for path, inside in found]
    return ids


class Copy:
    """A copy of the checkout in a temporary folder, in which tests run with and without a fault."""

    def __init__(self, root: Path) -> None:
        self.root = root
        copy_checkout(root)
        self.python = make_interpreter(root)

    def run(self, ids: list[str]) -> tuple[int | None, str]:
        """Run tests up to the first failure; return pytest's status (None: it hung) and output."""
        command = ["nice", str(self.python), "-m", "pytest", "-x", "-q", "-n", "0", "--tb=line"]
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *ids],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, ""
        return process.returncode, output

    def run_with(self, spot: Spot, mutated: str, ids: list[str]) -> tuple[int | None, str]:
        """Run tests with one statement changed, and undo the change."""
        source = spot.path.read_text(encoding="utf-8")
        changed = mutations.changed_source(source, spot.place.node, mutated)
        try:
            self._write(spot.path, changed)
            return self.run(ids)
        finally:
            self._write(spot.path, source)

    def _write(self, path: Path, text: str) -> None:
        """Write a module and drop its bytecode, which goes by size and second of the change."""
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def candidates(count: int) -> list[dict[str, Any]]:
    """Return the first faults in the random order of the seed, without the tests that kill them.

    Statements that stand more than once in a function of one name are left out: they could not be
    found again.
    """
    spots = every_place(PROJECT)
    times: dict[tuple[str, str], int] = {}
    for spot in spots:
        key = (spot.place.function, spot.place.statement)
        times[key] = times.get(key, 0) + 1
    found = []
    for path in sorted((PROJECT / PACKAGE).rglob("*.py")):
        module = path.relative_to(PROJECT).as_posix()
        if module.startswith(_LEFT_OUT):
            continue
        for fault in mutations.faults(ast.parse(path.read_text(encoding="utf-8"))):
            if times[fault.place.function, fault.place.statement] == 1:
                found.append(
                    {
                        "module": module,
                        "function": fault.place.scope,
                        "kind": fault.kind,
                        "statement": fault.place.statement,
                        "mutated": fault.mutated,
                    }
                )
    random.Random(SEED).shuffle(found)
    return [{"candidate": number, **each} for number, each in enumerate(found[:count], 1)]


def check(numbers: list[int]) -> dict[int, str]:
    """Apply each fault and run its tests; return the verdicts by number.

    A verdict is "dies", "survives", "not found" (the statement, or a test), or "tests fail" (those
    of this fault fail without it).
    """
    chosen = [
        mutant
        for mutant in json.loads(LIST.read_text(encoding="utf-8"))["mutants"]
        if not numbers or mutant["number"] in numbers
    ]
    verdicts: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        made = Copy(Path(folder, "checkout"))
        spots, names = every_place(made.root), test_names(made.root)
        ready = []
        for mutant in chosen:
            try:
                ready.append((mutant, *find(mutant, spots), node_ids(mutant, names)))
            except NotFoundError as error:
                verdicts[mutant["number"]] = "not found"
                tell(mutant, "not found", str(error))
        every = sorted({each for *_, ids in ready for each in ids})
        sound = not every or made.run(every)[0] == 0
        for mutant, spot, mutated, ids in ready:
            if not sound and made.run(ids)[0] != 0:
                verdicts[mutant["number"]] = "tests fail"
                tell(mutant, "tests fail", f"without the fault: {' '.join(ids)}")
                continue
            status, _ = made.run_with(spot, mutated, ids)
            verdict = "survives" if status == 0 else "dies"
            verdicts[mutant["number"]] = verdict
            where = f"{spot.path.relative_to(made.root)}:{spot.place.node.lineno}"
            tell(mutant, verdict, where if status is not None else f"{where}, by hanging")
    return verdicts


def tell(mutant: dict[str, Any], verdict: str, text: str) -> None:
    """Print the row of a fault."""
    print(f"{mutant['number']:>3}  {verdict:<10} {mutant['kind']:<18} {text}", flush=True)


def main() -> int:
    """Check the faults of the list, or pick candidates for one; 1 if a fault does not die."""
    parser = argparse.ArgumentParser(description="Faults that the tests must see.")
    commands = parser.add_subparsers(dest="command", required=True)
    checked = commands.add_parser("check", help="apply the faults of mutants.json, run their tests")
    checked.add_argument("numbers", type=int, nargs="*", help="some of them (default: all)")
    picked = commands.add_parser("pick", help="print random candidates as JSON")
    picked.add_argument("count", type=int)
    options = parser.parse_args()
    if options.command == "pick":
        print(json.dumps(candidates(options.count), indent=2))
        return 0
    verdicts = check(options.numbers)
    words = ("dies", "survives", "not found", "tests fail")
    counts = {word: list(verdicts.values()).count(word) for word in words}
    told = {str(number): verdict for number, verdict in sorted(verdicts.items())}
    print(json.dumps({"topic": "mutants", **counts, "verdicts": told}))
    return 0 if counts["dies"] == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
