"""Runs one case in this process, under the real driver, and prints as JSON what everybody says.

Usage: ``python -m tests.gpu.touch_probe NAME``. The truth is what a forked child's own ``cuInit``
answers; beside it stand torch's flag, the driver probe and the line that the injection named.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from typing import Any

from pytest_cudafork.check.watch import Watch
from pytest_cudafork.observe.handed_on import WatchSettings
from pytest_cudafork.observe.story.stories import History
from tests.gpu.touch_cases import CASES, Case

_NOT_INITIALIZED = 3


def measure(case: Case) -> dict[str, Any]:
    """Run the case and ask everybody; the process is spoiled afterwards."""
    folder = tempfile.mkdtemp()
    settings = WatchSettings(os.path.join(folder, "ledger.jsonl"), "real", "poison")
    watch = Watch(settings, str(os.getpid()))
    watch.observer.ledger.create()
    watch.begin()
    # A file of its own, so that the stack has a line that can be read.
    path = os.path.join(folder, "touching.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(case.source)
    error = ""
    try:
        exec(compile(case.source, path, "exec"), {"__name__": "touching"})
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    state = watch.observer.state()
    code = _cu_init_of_child()
    torch = sys.modules.get("torch")
    touch = History(watch.observer.records()).initializer(os.getpid())
    watch.end()
    culprit = touch.culprit if touch is not None else None
    return {
        "case": case.name,
        "poisons": code == _NOT_INITIALIZED,
        "child_cu_init": code,
        "torch_is_initialized": torch.cuda.is_initialized() if torch else None,
        "probe": state.verdict.value,
        "witness": touch.witness if touch else None,
        "entry": touch.entry if touch else None,
        "culprit": f"{culprit.filename}:{culprit.lineno}" if culprit else None,
        "stack_names_the_case": touch is not None
        and any(frame.filename == path for frame in touch.frames),
        "error": error,
    }


def _cu_init_of_child() -> int:
    """What ``cuInit`` answers in a child forked now."""
    pid = os.fork()
    if pid == 0:
        os._exit(ctypes.CDLL("libcuda.so.1").cuInit(0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Run the case named on the command line."""
    case = next(case for case in CASES if case.name == sys.argv[1])
    sys.stdout.write(json.dumps(measure(case)) + "\n")
    sys.stdout.flush()
    os._exit(0)  # some libraries crash at exit after a fork; the answer is given


if __name__ == "__main__":
    main()
