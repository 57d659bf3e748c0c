"""What is called in a sweep over torch's public functions, and with which arguments.

Arguments are kept as text, which names a call in a table and makes fresh values for each. A
function is tried with all of them: most calls fail at the check of their arguments, which is no use
of CUDA and the same on every machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

IN_THEMSELVES = (
    "torch",
    "torch.accelerator",
    "torch.amp",
    "torch.backends",
    "torch.backends.cuda",
    "torch.backends.cudnn",
    "torch.cuda",
    "torch.random",
    "torch.utils",
)
"""Modules of which every public name is called, wherever it was made."""

WITH_PARTS = ("torch.accelerator", "torch.amp", "torch.backends", "torch.cuda", "torch.utils")
"""Packages whose modules are swept, too; of these the names that were made there."""

LEFT_OUT = frozenset(
    (
        "torch.utils.benchmark.examples",  # programs
        "torch.utils.benchmark.op_fuzzers",
        "torch.utils.bottleneck",
        "torch.utils.hipify",  # rewrites files
        "torch.utils.data.datapipes.gen_pyi",  # writes files
        "torch.utils.model_zoo",  # loads from the network
        "torch.utils.tensorboard",  # needs a further package
        "torch.utils.valgrind",
    )
)

ARGUMENTS = (
    "",
    "t",
    "t, t",
    "t, t, t",
    "t, 1",
    "t, i",
    "t, 0, i",
    "t, 0, i, t",
    "t, 1, 1",
    "[t, t]",
    "[t, t], 0",
    "1",
    "0",
    "2, 2",
    "(2, 2)",
    "(2, 2), 1.0",
    "0, 3, 4",
    "True",
    "False",
    "None",
    "'name'",
    "'cpu'",
    "'cuda'",
    "'cuda:0'",
    "torch.device('cuda')",
    "0, 'cuda'",
    "'cuda', 0",
    "'cuda', torch.float16",
    "t, 'cuda'",
    "torch.float16",
    "fn",
    "fn, t",
    "fn, (t,)",
    "module",
    "module, t",
    "[1, 2, 3]",
    "[1, 2, 3], [0]",
    "[1, 2, 3], pin_memory=True",
    "device='cuda'",
    "device_type='cuda'",
    "t, device='cuda'",
    "t, pin_memory=True",
    "(2, 2), device='cuda'",
    "(2, 2), pin_memory=True",
    "(2, 2), 1.0, device='cuda'",
    "(2, 2), 1.0, pin_memory=True",
    "3, device='cuda'",
    "3, pin_memory=True",
    "3, (2, 2), device='cuda'",
    "3, (2, 2), pin_memory=True",
    "0, 3, 4, device='cuda'",
    "0, 3, 4, pin_memory=True",
    "(2, 2), (2, 1), device='cuda'",
    "(2, 2), (2, 1), pin_memory=True",
    "i[:1], t[0, :1], device='cuda'",
    "i[:1], t[0, :1], pin_memory=True",
    "i[0], i[0], t[0], device='cuda'",
    "i[0], i[0], t[0], pin_memory=True",
)
"""What each function is called with. ``names`` has the values."""


def names() -> dict[str, Any]:
    """Fresh values for the names in the arguments and statements; all of them are on the CPU."""
    import torch

    module = torch.nn.Linear(2, 2, device="cpu")
    return {
        "torch": torch,
        "t": torch.ones(2, 2, device="cpu"),
        "i": torch.zeros(2, 2, dtype=torch.long, device="cpu"),
        "fn": lambda *values: values[0] if values else None,
        "module": module,
    }


def modules() -> list[str]:
    """Name the modules of the sweep, without importing any."""
    found = set(IN_THEMSELVES)
    for package in WITH_PARTS:
        found |= set(_below(package))
    return sorted(name for name in found if not _is_left_out(name))


def _below(package: str) -> Iterator[str]:
    import torch

    top = os.path.dirname(os.path.dirname(str(torch.__file__)))
    folder = os.path.join(top, *package.split("."))
    if not os.path.isdir(folder):
        return
    for entry in sorted(os.listdir(folder)):
        name = entry.removesuffix(".py")
        path = os.path.join(folder, entry)
        if name.startswith("_") or not (
            entry.endswith(".py") or os.path.exists(os.path.join(path, "__init__.py"))
        ):
            continue
        yield f"{package}.{name}"
        if os.path.isdir(path):
            yield from _below(f"{package}.{name}")


def _is_left_out(name: str) -> bool:
    return any(name == left or name.startswith(left + ".") for left in LEFT_OUT)


def functions(module: ModuleType) -> list[str]:
    """Name the public callables of an imported module that are called for it."""
    everything = module.__name__ in IN_THEMSELVES
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    found = []
    for name in sorted(dir(module)):
        value = getattr(module, name, None)
        if name.startswith("_") or not callable(value) or isinstance(value, ModuleType):
            continue
        if not everything and getattr(package, name, None) is value:
            continue  # called there
        made_in = str(getattr(value, "__module__", "") or "")
        if made_in == module.__name__ or (everything and not _is_foreign(made_in)):
            found.append(name)
    return found


def _is_foreign(module: str) -> bool:
    return bool(module) and module.split(".")[0] not in ("torch", "builtins")
