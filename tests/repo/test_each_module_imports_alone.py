"""Every module can be the first one that is imported, without a warning."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.repo.sources import modules

# One interpreter forks a child for each module: a fresh interpreter each would cost ten times this.
# What the children share is what this import needs, nothing of the package.
IMPORT_EACH = """
import importlib, os, sys, traceback, warnings
warnings.simplefilter("error")
for name in sys.argv[1:]:
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


def test_each_module_imports_alone_and_without_a_warning() -> None:
    names = [module.name for module in modules()]
    # A watch that this process is under would be inherited, and with it modules of the package.
    env = {name: value for name, value in os.environ.items() if not name.startswith("_CUDAFORK_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_EACH, *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        check=True,
    )
    failed = [name for name in names if f"{name} ok" not in done.stdout.splitlines()]
    assert not failed, done.stdout
