"""The template of the file worker: a process that has imported modules, and is forked for files.

It is forked only if the driver says that CUDA is untouched, and if no thread of Python runs that
the children would lack. Each module is looked at by itself, so that the one to blame is named.
"""

from __future__ import annotations

import importlib

from pytest_cudafork.check.state import current_state
from pytest_cudafork.compat.unpatched import threading, traceback
from pytest_cudafork.observe.driver.probe import Verdict
from pytest_cudafork.process import fork_server, randomness
from pytest_cudafork.process.forking import freeze_before_fork
from pytest_cudafork.process.protocol.server_messages import CannotFork

IMPORT, CUDA, THREADS = "import", "cuda", "threads"
"""Why a module cannot be imported here: it raises, or it leaves what a child cannot use."""
_MOST_NAMED = 5
_LONGEST_TEXT = 4000


class Template(fork_server.Prepared):
    """What the children have in common."""

    def __init__(self, seeds: randomness.Randomness) -> None:
        self._seeds = seeds

    def begin_child(self, stacks_fd: int) -> None:
        """Give a child random numbers of its own, as a fresh interpreter has them."""
        self._seeds.renew()


def prepare(server: fork_server.ForkServer) -> None:
    """Import what is asked for, look at the result, and serve."""
    seeds = randomness.Randomness()
    for name in ("", *server.settings.data["preload"]):
        why_not = import_and_look(name)
        if why_not is not None:
            server.ready(why_not)
            return
    seeds.look()
    freeze_before_fork.OpenMP().pause()
    freeze_before_fork.freeze()
    server.serve(Template(seeds))


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
