"""Small packages on disk, and records of what their imports really did.

A line ``cuda_stub.touch()`` stands for one that initializes CUDA.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_cudafork.imports.graph.import_graph import ImportGraph, build_graph
from pytest_cudafork.imports.values.records import ImportRecord, ImportVerdict
from pytest_cudafork.imports.values.targets import FoundModule
from pytest_cudafork.observe.story.touch import Touch

STUB = """
import sys
stack = []
def touch():
    frame = sys._getframe(1)
    while frame is not None and not hasattr(touch, "done"):
        code = frame.f_code
        stack.append([code.co_filename, frame.f_lineno, code.co_name, code.co_flags])
        frame = frame.f_back
    touch.done = True
"""

IMPORTER = """
import importlib, json, os, sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import cuda_stub
for name in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        before, error = set(sys.modules), ""
        try:
            importlib.import_module(name)
        except BaseException as caught:
            error = type(caught).__name__
        loaded = [name for name in sys.modules if name not in before]
        told = {"module": name, "error": error, "loaded": loaded, "stack": cuda_stub.stack}
        os.write(1, json.dumps(told).encode() + b"\\n")
        os._exit(0)
    os.waitpid(pid, 0)
"""


def write_package(root: Path, files: Mapping[str, str], package: str = "pkg") -> list[FoundModule]:
    """Write files below ``root``; return the modules of one package of them."""
    found = []
    for name, source in {"cuda_stub.py": STUB, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        dotted = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if dotted == package or dotted.startswith(package + "."):
            found.append(FoundModule(dotted, str(path), path.name == "__init__.py"))
    return sorted(found, key=lambda module: module.name)


def import_all(
    root: Path, modules: Sequence[FoundModule], package: str = "pkg"
) -> list[ImportRecord]:
    """Import each module in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", IMPORTER, str(root)],
        input=json.dumps([module.name for module in modules]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return [_record(json.loads(line), package) for line in done.stdout.splitlines()]


def _record(told: Mapping[str, Any], package: str) -> ImportRecord:
    touches = (touch_with(told["stack"]),) if told["stack"] else ()
    if told["error"]:
        verdict = ImportVerdict.TOUCHES_THEN_FAILS if touches else ImportVerdict.NOT_IMPORTABLE
    else:
        verdict = ImportVerdict.TOUCHES if touches else ImportVerdict.CLEAN
    return ImportRecord(
        told["module"],
        package,
        verdict,
        touches=touches,
        reason=told["error"],
        loaded=tuple(told["loaded"]),
    )


def touch_with(stack: Sequence[Sequence[Any]]) -> Touch:
    """Return a touch with a stack, innermost frame first."""
    return Touch.from_record({"id": "1-1", "pid": 1, "t": 1, "entry": "cuInit", "stack": stack})


def audit(root: Path, files: Mapping[str, str]) -> tuple[ImportGraph, list[ImportRecord]]:
    """Write a package ``pkg``, import all its modules, and build its graph."""
    modules = write_package(root, files)
    records = import_all(root, modules)
    return build_graph(modules, records), records
