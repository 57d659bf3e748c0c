"""Other hosts for pytest-xdist, as far as one machine can play them.

Each is a server for execnet's sockets on the loopback, in a process with a folder, a temporary
folder and an environment of its own; nothing that the controller's session sets reaches it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_SERVER = """
from execnet.gateway_base import get_execmodel
from execnet.script import socketserver
socketserver.execmodel = get_execmodel("thread")
made = socketserver.bind_and_listen("127.0.0.1:0", socketserver.execmodel)
print(made.getsockname()[1], flush=True)
socketserver.startserver(made, loop=True)
"""


class Host(NamedTuple):
    """A host that listens.

    Attributes:
        spec: What --tx takes.
        folder: Where its workers run.
        temporary: Its temporary folder.

    """

    spec: str
    folder: Path
    temporary: Path


@contextlib.contextmanager
def host(base: Path, name: str, variables: Mapping[str, str] | None = None) -> Iterator[Host]:
    """Start one; its server ends with the block.

    Args:
        base: Where its folders are made.
        name: Its name, which its tests find in HOST.
        variables: Further variables of its environment.

    """
    folder, temporary = base / name / "work", base / name / "tmp"
    folder.mkdir(parents=True)
    temporary.mkdir()
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "HOST": name, **(variables or {})}
    # as the sessions of tests have it: what -p names must not be loaded twice
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    env["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    log = open(base / f"{name}.log", "wb")  # noqa: SIM115
    with log, subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        port = int(server.stdout.readline())
        pump = subprocess.Popen(["cat"], stdin=server.stdout, stdout=log)  # a full pipe blocks it
        try:
            yield Host(f"socket=127.0.0.1:{port}//chdir={folder}", folder, temporary)
        finally:
            server.kill()
            server.wait()
            pump.wait()
