"""Calls torch's public functions, each in its own process, and asks whether CUDA is initialized.

``python -m tests.gpu.surface.sweep --device real OUT.json`` on a machine with a GPU, where the
driver itself is asked; ``--device absent`` or ``--device sm_90`` elsewhere, where the plugin's
witnesses are. The processes are forked from one that has imported torch and is clean.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib
import itertools
import json
import os
import platform
import select
import signal
import sys
import tempfile
import time
import warnings
from typing import Any

from pytest_cudafork.observe.driver.probe import Driver, ask_driver
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.observer import Observer
from tests.gpu.surface import calls
from tests.gpu.surface.statements import STATEMENTS

CHUNK = 30
"""Statements, or callables of a module that is imported already, for each process that forks."""

ENOUGH = 8
"""Calls of one function that may touch; the rest of its arguments tell nothing new."""

CALL_SECONDS = 30.0
UNIT_SECONDS = 240.0
IMPORT = "import"

Case = tuple[str, str]
"""The name of a callable and its arguments; a statement has none."""


class Asked:
    """Whether CUDA is initialized in this process."""

    def __init__(self, device: str, folder: str) -> None:
        self.device = device
        self.observer: Observer | None = None
        if device != "real":
            path = os.path.join(folder, "ledger.jsonl")
            self.observer = Observer(WatchSettings(path, device, "poison"), str(os.getpid()))
            self.observer.ledger.create()
            self.observer.start()

    def touched(self) -> bool:
        """Ask the driver where there is one, else what the witnesses saw."""
        if self.observer is None:
            return ask_driver().driver is Driver.INITIALIZED
        return not self.observer.state().safe_to_fork


def cases_of(unit: tuple[str, int]) -> list[Case]:
    """Make the cases of one unit: a part of a module's callables, after its import."""
    name, part = unit
    if name == "statements":
        return [(statement, "") for statement in STATEMENTS[part * CHUNK : (part + 1) * CHUNK]]
    chosen = calls.functions(importlib.import_module(name))
    if name in calls.IN_THEMSELVES:
        chosen = chosen[part * CHUNK : (part + 1) * CHUNK]
    return [(f"{name}.{function}", text) for function in chosen for text in calls.ARGUMENTS]


def attempt(case: Case) -> str:
    """Make one call and say how it ended: "ok", or the error's first line."""
    name, arguments = case
    values = calls.names()
    try:
        if name in STATEMENTS:
            exec(name, values)
        else:
            module, function = name.rsplit(".", 1)
            values["f"] = getattr(sys.modules[module], function)
            result = eval(f"f({arguments})", values)
            if hasattr(type(result), "__enter__") and not isinstance(
                result, values["torch"].Tensor
            ):
                with result:
                    pass
    except BaseException as error:
        words = str(error).strip().split("\n")[0][:160]
        return f"{type(error).__name__}: {words}"
    return "ok"


def run_cases(cases: list[Case], asked: Asked, results: dict[str, Any], end: float) -> None:
    """Run cases in forked children, until the time *end*."""
    for _, group in itertools.groupby(cases, key=lambda case: case[0]):
        if time.monotonic() < end:
            _run_group(list(group), asked, results)
        else:
            results.update({"\t".join(case): [None, "no time was left"] for case in group})


def _run_group(cases: list[Case], asked: Asked, results: dict[str, Any]) -> None:
    """Run the cases of one callable; a child lasts until a call has touched, hung or ended it."""
    index = touches = 0
    while index < len(cases) and touches < ENOUGH:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _child(cases[index:], asked, writer)
        os.close(writer)
        done, ended = _listen(reader, pid)
        for touched, outcome in done:
            results["\t".join(cases[index])] = [touched, outcome]
            index += 1
            touches += touched
        if index < len(cases) and not (done and done[-1][0]):
            results["\t".join(cases[index])] = [None, ended]
            index += 1


def _child(cases: list[Case], asked: Asked, writer: int) -> None:
    """Make calls until one touches; each is told as it ends."""
    try:
        for case in cases:
            outcome = attempt(case)
            touched = asked.touched()
            os.write(writer, (json.dumps([touched, outcome]) + "\n").encode())
            if touched:
                break
    finally:
        os._exit(0)


def _listen(reader: int, pid: int) -> tuple[list[Any], str]:
    """Read what a child tells; says also how it ended in the middle of a call."""
    data, ended = b"", "the process ended"
    while True:
        if not select.select([reader], [], [], CALL_SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
            ended = f"no answer in {CALL_SECONDS:.0f} s"
            break
        got = os.read(reader, 65536)
        if not got:
            break
        data += got
    os.close(reader)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status < 0 and ended == "the process ended":
        ended = f"the process died of {signal.Signals(-status).name}"
    return [json.loads(line) for line in data.split(b"\n")[:-1]], ended


def run_unit(unit: tuple[str, int], asked: Asked, path: str, end: float) -> None:
    """Import a module, then run a part of its cases; leaves the outcome in a file."""
    name, part = unit
    results: dict[str, Any] = {}
    outcome = "ok"
    if name != "statements":
        try:
            importlib.import_module(name)
        except BaseException as error:
            outcome = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        touched = asked.touched()
        if part == 0:
            results[f"{IMPORT} {name}\t"] = [touched, outcome]
        if touched or outcome != "ok":
            _write(path, results)
            return
    run_cases(cases_of(unit), asked, results, end)
    _write(path, results)


def _write(path: str, results: dict[str, Any]) -> None:
    with open(path + ".part", "w", encoding="utf-8") as file:
        json.dump(results, file)
    os.replace(path + ".part", path)


def units(only: str) -> list[tuple[str, int]]:
    """List the units: parts of the statements and of large modules, and further modules."""
    made: list[tuple[str, int]] = []
    for name in ["statements", *sorted(calls.modules(), key=_late)]:
        if only and name not in only.split(","):
            continue
        if name == "statements":
            count = len(STATEMENTS)
        elif name in calls.IN_THEMSELVES:
            count = len(calls.functions(sys.modules[name]))
        else:
            count = 1
        made += [(name, part) for part in range(max(1, -(-count // CHUNK)))]
    return made


def _late(module: str) -> tuple[bool, str]:
    """Order modules: those with the most to tell first, should the time not be enough."""
    return module.startswith("torch.utils") or module == "torch", module


def sweep(asked: Asked, folder: str, jobs: int, only: str, seconds: float) -> dict[str, Any]:
    """Run all units, some at a time."""
    waiting = collections.deque(enumerate(units(only)))
    running: dict[int, tuple[float, str, str]] = {}
    results: dict[str, Any] = {}
    end = time.monotonic() + seconds
    while waiting or running:
        while waiting and len(running) < jobs and time.monotonic() < end:
            number, unit = waiting.popleft()
            path = os.path.join(folder, f"unit-{number}.json")
            pid = os.fork()
            if pid == 0:
                with contextlib.suppress(BaseException):
                    os.setsid()
                    os.chdir(tempfile.mkdtemp(dir=folder))
                    run_unit(unit, asked, path, end)
                os._exit(0)
            running[pid] = time.monotonic() + UNIT_SECONDS, path, f"{unit[0]} {unit[1]}"
        if time.monotonic() > end and waiting:
            results.update({f"{IMPORT} {u[0]}\t": [None, "no time was left"] for _, u in waiting})
            waiting.clear()
        for pid, (limit, path, name) in list(running.items()):
            if time.monotonic() > min(limit, end + 40):
                os.killpg(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                del running[pid]
                try:
                    with open(path, encoding="utf-8") as file:
                        results.update(json.load(file))
                except FileNotFoundError:
                    results[f"unit {name}\t"] = [None, "the unit died"]
        time.sleep(0.01)
    return results


def main() -> int:
    """Sweep, write the outcome and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True, help="real, absent, or a face as sm_90")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="modules, with commas between; or statements")
    parser.add_argument("--seconds", type=float, default=170.0)
    parser.add_argument("out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asked = Asked(options.device, folder)
        import torch
        import torch.cuda

        torch.set_num_threads(1)
        for name in calls.IN_THEMSELVES:
            importlib.import_module(name)
        if asked.touched():
            sys.exit("CUDA is initialized after import torch: nothing can be learned here")
        silent = os.open(os.devnull, os.O_RDWR)
        kept = os.dup(1), os.dup(2)
        for descriptor in (0, 1, 2):
            os.dup2(silent, descriptor)
        results = sweep(asked, folder, options.jobs, options.only, options.seconds)
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        about = {
            "device": options.device,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "seconds": round(time.monotonic() - began, 1),
        }
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump({"about": about, "results": results}, file, indent=0, sort_keys=True)
    touching = [key for key, (touched, _) in results.items() if touched]
    odd = [(key, outcome) for key, (touched, outcome) in results.items() if touched is None]
    said = {**about, "calls": len(results), "touching": len(touching), "odd": len(odd)}
    sys.stdout.write(json.dumps(said) + "\n")
    for key, outcome in odd:
        sys.stdout.write(f"  {key!r}: {outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
