"""The template of the file worker: a process that has imported modules, and is forked for files.

It is forked only if the driver says that CUDA is untouched, and if no thread of Python runs that
the children would lack. Each module is looked at by itself, so that the one to blame is named.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from pytest_cudafork.check.state import current_state
from pytest_cudafork.compat.unpatched import contextlib, threading, traceback
from pytest_cudafork.file_worker.child import open_files
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.process import child, fork_server, randomness
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol.server_messages import CannotFork

IMPORT, CUDA, THREADS = "import", "cuda", "threads"
"""Why a module cannot be imported here: it raises, or it leaves what a child cannot use."""
_MOST_NAMED = 5
_LONGEST_TEXT = 4000


class Template(fork_server.Prepared):
    """What the children have in common: the modules, and what these have changed around them."""

    def __init__(self, seeds: randomness.Randomness, path: Sequence[str]) -> None:
        """Take what gives random numbers, and ``sys.path`` as it was before the modules came."""
        self._seeds = seeds
        self._first = path[0] if path else None
        self._path = list(sys.path)
        self._surroundings = child.surroundings({})
        self.open_files = open_files.flush_all()
        """Files that modules have opened, with nothing held back."""

    def begin_child(self, stacks_fd: int) -> None:
        """Give a child random numbers of its own, as a fresh interpreter has them."""
        self._seeds.renew()

    def take_over(self, folder: str | None) -> None:
        """Let a file find around itself what it finds once it has imported the modules.

        A child of a fork server begins with the world of the worker, in which no module has set a
        variable or a folder to look in.

        Args:
            folder: The file's own, where modules are looked for first; None: they are not.

        """
        child.take_over(self._surroundings)
        sys.path[:] = self._path
        if folder is not None:
            with contextlib.suppress(ValueError):  # a module has taken it out
                sys.path[sys.path.index(self._first)] = folder  # type: ignore[arg-type]


def prepare(server: fork_server.ForkServer) -> None:
    """Import what is asked for, look at the result, and serve."""
    seeds, path = randomness.Randomness(), list(sys.path)
    for name in ("", *server.settings.data["preload"]):
        why_not = import_and_look(name)
        if why_not is not None:
            server.ready(why_not)
            return
    seeds.look()
    freeze_before_fork.OpenMP().pause()
    template = Template(seeds, path)
    freeze_before_fork.freeze()
    server.serve(template)


def import_and_look(name: str) -> CannotFork | None:
    """Import a module ("": none); return why this process cannot be forked, None if it can be."""
    if name:
        try:
            importlib.import_module(name)
        except BaseException as error:  # an import may raise anything, SystemExit too
            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            return CannotFork(name, IMPORT, text[-_LONGEST_TEXT:].strip())
    state = current_state()
    if state.verdict is not Verdict.CLEAN:
        return CannotFork(name, CUDA, f"CUDA is {state.verdict.value}: {state.why}")
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    if threads:
        more = f" and {len(threads) - _MOST_NAMED} more" if len(threads) > _MOST_NAMED else ""
        return CannotFork(name, THREADS, f"threads run: {', '.join(threads[:_MOST_NAMED])}{more}")
    return None
