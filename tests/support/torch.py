"""Runs scripts under a witness in torch, each in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support import interpreters

CAPTURABLE_SINCE = {
    "combinations": (2, 14),
    "number assigned to one element": (2, 15),  # filled in; it was a tensor of the host, copied
    "number assigned to an element of a row": (2, 15),
}
"""Operators and calls that CUDA refuses in a capture before that release of torch."""


HIDES_TORCH = """
import importlib.machinery

find = importlib.machinery.PathFinder.find_spec


def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] == "torch" else find(name, path, target)


importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""
"""A module that lets torch count as not installed in the process that imports it."""


def require_cpu_build_of_torch() -> None:
    """Skip a module that states what a build of torch without CUDA does.

    What a build with CUDA does is held by the specimens and by the tests on a GPU.
    """
    version = _version_of_torch()
    if version is None:
        pytest.skip("torch is not installed", allow_module_level=True)
    if version["cuda"] is not None:
        pytest.skip(f"torch {version['__version__']} has CUDA", allow_module_level=True)


def is_cuda_build_of_torch() -> bool:
    """Whether the torch that an import would find, if there is one, was built with CUDA."""
    version = _version_of_torch()
    return version is not None and version["cuda"] is not None


def torch_release() -> tuple[int, ...]:
    """Return the release that an import would find, as ``(2, 13)``; () without torch."""
    version = _version_of_torch()
    return () if version is None else tuple(map(int, version["__version__"].split(".")[:2]))


def capturable_by_now() -> frozenset[str]:
    """Return which of ``CAPTURABLE_SINCE`` the torch that an import would find can capture."""
    here = torch_release()
    return frozenset(name for name, release in CAPTURABLE_SINCE.items() if here >= release)


def _version_of_torch() -> dict[str, Any] | None:
    """Return what torch's file ``version.py`` says; None without torch.

    torch is not imported for the answer: that takes seconds, and pytester forgets it and breaks it.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version: dict[str, Any] = {}
    exec(Path(spec.origin).with_name("version.py").read_text(encoding="utf-8"), version)
    return version


PRELUDE = '''
import json, os, sys, warnings
from pytest_cudafork.observe.torch.api import TorchWitness

log, out, poison = [], [], []


def record(entry, *, again, stack):
    log.append({"entry": entry, "again": again, "stack": [list(item) for item in stack],
                "poisoned": bool(poison)})


def attempt(expression):
    """What an expression gives: value or error, warnings with their place, touches."""
    before = len(log)
    # A file of its own each, because a touch is recorded once for each stack.
    filename = f"user of {expression}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            answer = repr(eval(compile(expression, filename, "eval")))
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
    said = [[w.category.__name__, str(w.message), w.filename, w.lineno] for w in caught]
    return {"answer": answer, "warnings": said, "touches": log[before:]}


def in_child(work):
    """Run work() in a forked child and give its JSON-able answer."""
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(w, json.dumps(work()).encode())
        os._exit(0)
    os.close(w)
    with open(r, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(data)


witness = TorchWitness(FACE, record, poisoned=lambda: bool(poison))
'''


def run(script: str, cwd: Path, face: str = "absent", **environment: str) -> Any:
    """Run *script* after the prelude, in *cwd*; returns what it left in ``out``.

    Raises:
        AssertionError: the script failed; its stderr is the message.

    """
    path = cwd / "script.py"
    path.write_text(
        f"FACE = {face!r}\n{PRELUDE}\n{textwrap.dedent(script)}\n"
        "sys.stdout.flush(); print('ANSWER', json.dumps(out))\n"
    )
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")
    }
    env["PYTHONPATH"] = os.pathsep.join([str(cwd), *filter(None, [os.environ.get("PYTHONPATH")])])
    env["TRITON_CACHE_DIR"] = str(cwd / "triton")
    done = interpreters.run(
        [sys.executable, "script.py"],
        cwd=cwd,
        env=env | environment,
        timeout=120,
    )
    assert done.returncode == 0, f"the script failed:\n{done.stderr[-4000:]}\n{done.stdout[-500:]}"
    answer = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(answer[-1].removeprefix("ANSWER "))
