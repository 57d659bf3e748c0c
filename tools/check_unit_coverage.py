"""Measures how much of each module its own test file reaches, alone.

A module ``pytest_cudafork/a/b.py`` has the test file ``tests/unit/a/test_b.py``. Each such file is
run by itself under coverage.py, in a child forked from one process that has imported pytest and
torch, so that a file takes about as long as its tests. What the children of the tests reach is not
counted: a module that is tested through other processes alone cannot be changed quickly.

Prints a table, least first, and as its last line JSON. Ends with status 1 if a module stays below
the limit without an entry in tests/repo/not_covered_by_name.toml, if tests fail, or if an entry is
no longer needed.

    python tools/check_unit_coverage.py
    python tools/check_unit_coverage.py process observe/base    # parts of the package
    python tools/check_unit_coverage.py --record call/run       # and write down what was found
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))

from tests.repo.sources import Module  # noqa: E402  (found by the line above)
from tests.repo.unit_files import (  # noqa: E402
    LEAST_PERCENT,
    exceptions,
    modules_to_test,
    name_of,
    own_test_file,
    record,
)

TIME_LIMIT = 600
"""Seconds for one test file."""

# Not plugins of pytest: it warns that it cannot rewrite the asserts of one that is there already.
IMPORTED_BEFORE = ("pytest", "torch")
# Lines that no run reaches, and that say nothing about what a test does.
NOT_COUNTED = (r"if TYPE_CHECKING:", r"@overload", r"^\s*\.\.\.$", r"raise NotImplementedError")


@dataclass(frozen=True)
class Measured:
    """What one test file reaches of its module.

    Attributes:
        module: the name below the package.
        percent: of its statements, 0 to 100; 100 for a module without statements.
        statements: how many it has.
        missing: lines that were not reached, as in ``3, 7-9``.
        seconds: how long the file took, start of pytest included.
        trouble: why the figure may be wrong: no file, tests that failed, the time limit.

    """

    module: str
    percent: float
    statements: int
    missing: str
    seconds: float
    trouble: str = ""


def main(arguments: Sequence[str]) -> int:
    """Measure the modules that the arguments name, or all, and print what was found."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("parts", nargs="*", help="folders or modules of the package, as a/b")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files at a time")
    parser.add_argument("--record", action="store_true", help="write what was found to the record")
    chosen = parser.parse_args(arguments)
    modules = [module for module in modules_to_test() if _is_in(module, chosen.parts)]
    for name in IMPORTED_BEFORE:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    measured = sorted(measure(modules, chosen.jobs), key=lambda one: (one.percent, one.module))
    if chosen.record:
        record({one.module: one.percent for one in measured if not one.trouble})
    return report(measured, exceptions(), complete=not chosen.parts)


def _is_in(module: Module, parts: Sequence[str]) -> bool:
    path = name_of(module).replace(".", "/")
    wanted = [part.strip("/").removesuffix(".py") for part in parts]
    return not parts or any(path == part or path.startswith(f"{part}/") for part in wanted)


def measure(modules: Sequence[Module], jobs: int) -> list[Measured]:
    """Run each module's own test file in a forked child, at most ``jobs`` at a time."""
    waiting, running, done = list(modules), list[_Child](), list[Measured]()
    with tempfile.TemporaryDirectory(prefix="unit-coverage-") as folder:
        while waiting or running:
            while waiting and len(running) < jobs:
                module = waiting.pop()
                if own_test_file(module).exists():
                    running.append(_Child(module, Path(folder) / module.name))
                else:
                    path = own_test_file(module).relative_to(PROJECT)
                    done.append(Measured(name_of(module), 0, 0, "", 0, f"no {path}"))
            time.sleep(0.02)
            done += [child.measured() for child in running if child.ended()]
            running = [child for child in running if child.status is None]
    return done


class _Child:
    """A process that runs one test file; ``status`` is its exit status once it has ended."""

    def __init__(self, module: Module, folder: Path) -> None:
        self.module, self.folder = module, folder
        self.status: int | None = None
        self.began = time.monotonic()
        folder.mkdir()
        sys.stdout.flush()
        with warnings.catch_warnings():
            # Python 3.12 and later warn of threads; none of those here hold a lock that tests need.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _run_and_leave(module, own_test_file(module), folder)

    def ended(self) -> bool:
        """Whether it has ended; ends it, with the children it has, after the time limit."""
        if time.monotonic() - self.began > TIME_LIMIT:
            os.killpg(self.pid, signal.SIGKILL)
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def measured(self) -> Measured:
        """Return what it found, or why it found nothing."""
        seconds = round(time.monotonic() - self.began, 1)
        try:
            found = json.loads((self.folder / "found.json").read_text())
        except FileNotFoundError:
            lines = (self.folder / "output").read_text(errors="replace").splitlines()
            trouble = f"ended with {self.status} after {seconds} s: {' '.join(lines[-1:])}"
            return Measured(name_of(self.module), 0, 0, "", seconds, trouble)
        lines = (self.folder / "output").read_text(errors="replace").splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        found["trouble"] = "; ".join([found["trouble"], *failed]).strip("; ")
        return Measured(name_of(self.module), seconds=seconds, **found)


def _run_and_leave(module: Module, test_file: Path, folder: Path) -> None:
    """Run the tests under coverage, write what was found, and end the process."""
    try:
        os.setpgid(0, 0)  # so that the time limit ends what the tests have started, too
        output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (folder / "found.json.new").write_text(json.dumps(_run(module, test_file, folder)))
        os.rename(folder / "found.json.new", folder / "found.json")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class _Patient:
    """A plugin for the runs here: Hypothesis has no deadlines under coverage."""

    def pytest_configure(self) -> None:
        if importlib.util.find_spec("hypothesis"):
            from hypothesis import HealthCheck, settings

            checks = [HealthCheck.too_slow]
            settings.register_profile("coverage", deadline=None, suppress_health_check=checks)
            settings.load_profile("coverage")


def _run(module: Module, test_file: Path, folder: Path) -> dict[str, object]:
    import coverage
    import pytest

    watch = coverage.Coverage(data_file=None, include=[str(module.path)], config_file=False)
    for pattern in NOT_COUNTED:
        watch.exclude(pattern)
    # pytest rewrites the asserts of the package ``tests``, and for that must import it itself.
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    watch.start()
    os.chdir(PROJECT)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--basetemp={folder / 'tmp'}"]
    status = pytest.main([*options, str(test_file)], plugins=[_Patient()])
    watch.stop()
    _, statements, _, missing, text = watch.analysis2(str(module.path))
    reached = len(statements) - len(missing)
    return {
        "percent": round(100 * reached / len(statements), 1) if statements else 100,
        "statements": len(statements),
        "missing": text,
        "trouble": "" if status == pytest.ExitCode.OK else f"pytest ended with status {status:d}",
    }


def report(measured: Sequence[Measured], excepted: dict[str, str], *, complete: bool) -> int:
    """Print the table and the line of JSON; return the exit status.

    Args:
        measured: what was found, in the order of the table.
        excepted: modules that need not reach the limit, with the reason.
        complete: whether all modules were measured, so that an entry can be called needless.

    """
    print(f"{'%':>6} {'lines':>6} {'s':>6}  module")
    for one in measured:
        note = f"  ({one.trouble})" if one.trouble else f"  missing {one.missing}"
        shown = note if one.percent < LEAST_PERCENT or one.trouble else ""
        print(f"{one.percent:6.1f} {one.statements:6} {one.seconds:6.1f}  {one.module}{shown}")
    below = [one for one in measured if one.percent < LEAST_PERCENT]
    unexpected = [one.module for one in below if one.module not in excepted]
    reached = {one.module for one in measured} - {one.module for one in below}
    needless = sorted(reached & excepted.keys()) if complete else []
    failed = [one.module for one in measured if one.trouble and one.module not in excepted]
    summary = {
        "modules": len(measured),
        "least_percent": LEAST_PERCENT,
        "unexpected": unexpected,
        "failed": failed,
        "needless_exceptions": needless,
        "below": [asdict(one) for one in below],
    }
    print(json.dumps(summary))
    return 1 if unexpected or needless or failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
