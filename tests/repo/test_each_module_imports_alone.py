"""Every module can be the first one that is imported, without a warning."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.repo.sources import Module, imports_of, modules

# One interpreter forks a child for each module: a fresh interpreter each would cost ten times this.
# What the children share is what this import needs, and libraries that many modules import: pytest,
# and torch, which takes longer than all else. Nothing of the package is among it. Modules that do
# without torch are imported before it: to fork a process that has imported it takes longer, too.
IMPORT_EACH = """
import gc, importlib, importlib.util, os, sys, traceback, warnings
def share(names):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.disable()
share(("pytest", "cloudpickle"))
warnings.simplefilter("error")
for name in sys.argv[1:]:
    if name.startswith("share:"):
        share(name.removeprefix("share:").split(","))
        continue
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            importlib.import_module(name)
            status = 0
        except BaseException:
            print(f"import {name}:")
            traceback.print_exc(file=sys.stdout)
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    print(f"{name} {'ok' if status == 0 else 'failed'}")
"""

TORCH = ("torch", "torch.utils._python_dispatch")


def needs_torch(module: Module) -> bool:
    """Whether a module imports torch at its top, itself or through another of the package."""
    by_name = {one.name: one for one in modules()}
    waiting, seen = [module.name], set()
    while waiting:
        name = waiting.pop()
        if name.partition(".")[0] == "torch":
            return True
        if name in by_name and name not in seen:
            seen.add(name)
            found = imports_of(by_name[name])
            waiting += [one.target for one in found if not one.late and not one.typing]
    return False


@pytest.mark.slow
def test_each_module_imports_alone_and_without_a_warning() -> None:
    torch = importlib.util.find_spec("torch") is not None
    asks_torch = {module.name: needs_torch(module) for module in modules()}
    plain = [name for name, asks in asks_torch.items() if not asks]
    after = [name for name, asks in asks_torch.items() if asks and torch]
    names = [*plain, *after]
    assert names
    # A watch that this process is under would be inherited, and with it modules of the package.
    env = {name: value for name, value in os.environ.items() if not name.startswith("_CUDAFORK_")}
    shared = [f"share:{','.join(TORCH)}"] if after else []
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_EACH, *plain, *shared, *after],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        check=True,
    )
    failed = [name for name in names if f"{name} ok" not in done.stdout.splitlines()]
    assert not failed, done.stdout
