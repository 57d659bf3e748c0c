"""The public functions that touch on a GPU are seen to touch on a CPU build, and no others.

What a GPU said is in ``tests/gpu/surface/measured.json``; how to measure it again, and to compare
all of it, says ``tests/gpu/surface/sweep.py``. Here each function that touches is called, with the
arguments that do and with those that do not, in one process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs
from tests.gpu.surface import calls
from tests.gpu.surface.compare import differing, measured, spelled
from tests.gpu.surface.differences import DIFFERENCES, why
from tests.support.torch import require_cpu_build_of_torch, run

require_cpu_build_of_torch()

ROOT = Path(__file__).parents[3]
MEASURED = json.loads((ROOT / "tests/gpu/surface/measured.json").read_text(encoding="utf-8"))

SCRIPT = '''
import importlib, inspect
from pytest_cudafork.observe.driver import native_libs, phantom
from tests.gpu.surface import calls

import torch, torch.utils.checkpoint

if not native_libs.why_not():
    witness._native = phantom.install("absent").native
witness.install()
warnings.simplefilter("ignore")

CALL = """result = f({})
if hasattr(type(result), "__enter__") and not isinstance(result, torch.Tensor):
    with result:
        pass
"""

def touches(name, text):
    values = calls.names()
    module, function = name.rsplit(".", 1)
    values["f"] = getattr(importlib.import_module(module), function)
    before = len(log)
    try:
        # A file of its own each, because a touch is recorded once for each stack.
        exec(compile(CALL.format(text), f"{name}({text})", "exec"), values)
    except BaseException:
        pass
    return len(log) > before

wrong = []
for name, about in TOUCHING.items():
    try:
        module, function = name.rsplit(".", 1)
        getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):
        continue  # another release of torch
    for text in calls.ARGUMENTS[: about["tried"]]:
        for cached in (torch.get_device_module, torch.accelerator.get_device_capability):
            if hasattr(cached, "cache_clear"):
                cached.cache_clear()
        torch.utils.checkpoint.DefaultDeviceType._default_device_type = None  # kept once asked
        seen = touches(name, text)
        if seen != (text in about["touching"]):
            wrong.append([name, text, seen])
out = wrong
'''


def test_each_function_touches_here_with_the_arguments_with_which_it_does_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_libs.why_not():
        pytest.skip(native_libs.why_not())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    wrong = run(f"TOUCHING = {MEASURED['touching']!r}\n{SCRIPT}", tmp_path)
    told = {spelled(f"{name}\t{text}"): seen for name, text, seen in wrong}
    assert {call: seen for call, seen in told.items() if not why(call, not seen)} == {}


def test_what_was_measured_covers_the_public_modules() -> None:
    modules = {name.rpartition(".")[0] for name in MEASURED["touching"]} | set(MEASURED["clean"])
    assert set(calls.IN_THEMSELVES) - {"torch.backends"} <= modules  # that has no function
    assert len(MEASURED["touching"]) > 150
    assert sum(len(names.split()) for names in MEASURED["clean"].values()) > 1000


def test_every_known_difference_says_why() -> None:
    assert all(one.why and one.calls for one in DIFFERENCES)
    assert why("torch.compile(fn)", True)
    assert not why("torch.compile(fn)", False)
    assert why("torch.accelerator.memory.reset_peak_memory_stats(0)", True)
    assert not why("torch.cuda.is_available()", True)


RESULTS: dict[str, Any] = {
    "torch.f\t": [True, "ok"],
    "torch.f\tt": [False, "ok"],
    "torch.g\t": [False, "ok"],
    "torch.h\t": [None, "died"],
    "t.cuda()\t": [True, "ok"],
    "x = 1\ny = 2\t": [False, "ok"],
}


def test_a_measurement_in_short() -> None:
    assert measured(RESULTS) == {
        "touching": {"torch.f": {"tried": 2, "touching": [""]}},
        "clean": {"torch": "g"},
        "statements": {"touching": ["t.cuda()"], "clean": ["x = 1\ny = 2"]},
    }


def test_differences_of_two_sweeps() -> None:
    other = {**RESULTS, "torch.f\t": [False, ""], "torch.g\t": [True, ""], "torch.h\t": [True, ""]}
    assert differing(RESULTS, other) == [("torch.f()", True, ""), ("torch.g()", False, "")]
    assert spelled("x = 1\ny = 2\t") == "x = 1; y = 2"
