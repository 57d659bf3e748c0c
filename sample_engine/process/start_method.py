"""The choice between fork, spawn, forkserver and no process at all, and the reasons for it.

The decision is a pure function of facts; gathering the facts is another function, which asks the
driver and never initializes it. ``launch`` starts the process then.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import sys
import threading
from collections.abc import Mapping
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

from sample_engine.config import EngineConfig, WorkerMethod
from sample_engine.device.driver_probe import DriverAnswer, DriverState, probe_driver
from sample_engine.errors import ConfigError

__all__ = [
    "COMMON_ENV",
    "METHOD_ENV",
    "VLLM_ENV",
    "ProcessFacts",
    "StartDecision",
    "choose_start_method",
    "gather_facts",
    "get_mp_context",
    "maybe_force_spawn",
]

METHOD_ENV = "SAMPLE_ENGINE_WORKER_METHOD"
VLLM_ENV = "VLLM_WORKER_MULTIPROC_METHOD"
COMMON_ENV = "MULTIPROCESSING_START_METHOD"

_logger = logging.getLogger(__name__)


class ProcessFacts(NamedTuple):
    """What is known of this process and of the engine that it wants.

    ``threads`` are the names of the Python threads beside the one that asks. ``daemonic``: it is a
    daemonic process of ``multiprocessing``, which may have no children. ``uses_gpu``: the engine
    will run on a GPU, as far as that is known before it runs. ``methods`` begins with Python's own
    default; ``chosen`` is the method of ``multiprocessing``'s default context, "" where nobody has
    chosen or used one yet.
    """

    driver: DriverAnswer
    system: str = "linux"
    methods: tuple[str, ...] = ("fork", "spawn", "forkserver")
    threads: tuple[str, ...] = ()
    daemonic: bool = False
    ray_actor: bool = False
    wsl: bool = False
    uses_gpu: bool = False
    speculative: bool = False
    chosen: str = ""


class _Wish(NamedTuple):
    """A start method that is asked for, and by whom.

    ``of_the_engine``: of this engine, and not of all that the program starts.
    """

    method: WorkerMethod
    asked_by: str
    of_the_engine: bool = True


class StartDecision(NamedTuple):
    """How the core is started. ``forced``: not in the way that was asked for."""

    method: WorkerMethod
    reasons: tuple[str, ...]
    requested: WorkerMethod
    forced: bool = False


def get_mp_context(method: WorkerMethod | str) -> BaseContext:
    """Return the context of ``multiprocessing`` for a method that starts a process.

    Raises :class:`ConfigError` for one that does not, or that this system lacks.
    """
    name = WorkerMethod(method).value
    if name not in multiprocessing.get_all_start_methods():
        have = ", ".join(multiprocessing.get_all_start_methods())
        raise ConfigError(f"{name!r} starts no process on this system; these do: {have}.")
    return multiprocessing.get_context(name)


def choose_start_method(config: EngineConfig) -> StartDecision:
    """Decide for this process, now. A request that is overridden is told in a warning."""
    decision = maybe_force_spawn(config.worker_method, os.environ, gather_facts(config))
    if decision.forced:
        _logger.warning(
            "The engine core is started by %r, not by %r as asked for: %s. See the reference of "
            "sample_engine, start methods.",
            decision.method.value,
            decision.requested.value,
            "; ".join(decision.reasons),
        )
    return decision


def maybe_force_spawn(
    requested: WorkerMethod, environ: Mapping[str, str], facts: ProcessFacts
) -> StartDecision:
    """Decide how the core is started. Pure.

    What the program asks of the engine counts first, then ``SAMPLE_ENGINE_WORKER_METHOD``, then
    what is asked of all engines or all processes (see ``_wish_for_all``), and last the rule of
    ``auto``: fork if nothing speaks against it, else spawn. A fork that cannot work is turned into
    a spawn even if it was asked for; one that is merely doubtful is not.

    Raises :class:`ConfigError` for a wrong value in the environment and for a method that cannot be
    had here.
    """
    wish = _wish(requested, environ, facts)
    requested, asked_by = wish.method, wish.asked_by
    if requested is WorkerMethod.INPROC:
        return StartDecision(requested, (asked_by,), requested)
    if facts.daemonic:
        return _without_children(wish)
    never, doubtful = _against_fork(facts)
    if requested is WorkerMethod.AUTO:
        if never or doubtful:
            return StartDecision(WorkerMethod.SPAWN, (*never, *doubtful), requested)
        safe = (facts.driver.reason, "no other thread runs")
        return StartDecision(WorkerMethod.FORK, safe, requested)
    if requested is WorkerMethod.FORK:
        if never:
            return StartDecision(WorkerMethod.SPAWN, (*never, *doubtful), requested, forced=True)
        although = (f"although {reason}" for reason in doubtful)
        return StartDecision(requested, (asked_by, *although), requested)
    if requested.value not in facts.methods:
        raise ConfigError(
            f"{asked_by}: this system has no {requested.value!r}, only {', '.join(facts.methods)}."
        )
    return StartDecision(requested, (asked_by, *never, *doubtful), requested)


def _wish(requested: WorkerMethod, environ: Mapping[str, str], facts: ProcessFacts) -> _Wish:
    """Return what counts of all that is asked for; ``AUTO`` if nobody asks for anything."""
    from_environment = _method_of_environment(environ, METHOD_ENV, tuple(WorkerMethod))
    if requested is not WorkerMethod.AUTO:
        return _Wish(requested, f"worker_method={requested.value!r}")
    if from_environment is not WorkerMethod.AUTO:
        return _Wish(from_environment, f"{METHOD_ENV}={from_environment.value} is set")
    return _wish_for_all(environ, facts)


def _wish_for_all(environ: Mapping[str, str], facts: ProcessFacts) -> _Wish:
    """Return what is asked of other engines too, or of all that the program starts.

    vLLM's variable is for engines. Before a variable for all programs counts what this one has
    chosen: ``multiprocessing.set_start_method``, known by a method that is not Python's default.
    That itself is a choice where it is not to fork, as from Python 3.14 on.
    """
    processes = (WorkerMethod.FORK, WorkerMethod.SPAWN, WorkerMethod.FORKSERVER)
    method = _method_of_environment(environ, VLLM_ENV, processes)
    if method is not WorkerMethod.AUTO:
        return _Wish(method, f"{VLLM_ENV}={method.value} is set", of_the_engine=False)
    default = facts.methods[0]
    if facts.chosen and facts.chosen != default:
        words = f"the program has chosen it: multiprocessing's start method is {facts.chosen!r}"
        return _Wish(WorkerMethod(facts.chosen), words, of_the_engine=False)
    method = _method_of_environment(environ, COMMON_ENV, processes)
    if method is not WorkerMethod.AUTO:
        return _Wish(method, f"{COMMON_ENV}={method.value} is set", of_the_engine=False)
    if default != WorkerMethod.FORK.value:
        words = (
            f"{default!r} is the default start method of this Python ({platform.python_version()})"
        )
        return _Wish(WorkerMethod(default), words, of_the_engine=False)
    return _Wish(WorkerMethod.AUTO, "worker_method='auto'")


def _method_of_environment(
    environ: Mapping[str, str], name: str, allowed: tuple[WorkerMethod, ...]
) -> WorkerMethod:
    """Return the method that a variable names; ``AUTO`` where it is not set, or empty."""
    text = environ.get(name, "").strip()
    values = {method.value: method for method in allowed}
    if not text:
        return WorkerMethod.AUTO
    if text.lower() not in values:
        raise ConfigError(f"{name}={text!r} is not one of {', '.join(values)}.")
    return values[text.lower()]


def _without_children(wish: _Wish) -> StartDecision:
    why = "this is a daemonic process of multiprocessing, which may have no children"
    if wish.method is WorkerMethod.AUTO or not wish.of_the_engine:
        return StartDecision(WorkerMethod.INPROC, (why,), wish.method)
    raise ConfigError(f"{wish.asked_by}: {why}. Use worker_method='inproc', or a process that may.")


def _against_fork(facts: ProcessFacts) -> tuple[list[str], list[str]]:
    """Why a fork cannot work, and why it might not."""
    never, doubtful = [], []
    if facts.driver.state is DriverState.INITIALIZED:
        never.append(facts.driver.reason)
    if facts.ray_actor:
        never.append("this is a Ray actor, whose threads and connections do not survive a fork")
    if facts.wsl and facts.uses_gpu:
        never.append("this is WSL, where NVML does not work in a forked child")
    if "fork" not in facts.methods:
        never.append("this system has no fork")
    elif facts.system != "linux":
        doubtful.append(f"forking is not reliable on {facts.system}")
    if facts.driver.state is DriverState.UNKNOWN:
        doubtful.append(facts.driver.reason)
    if facts.speculative and facts.uses_gpu:
        doubtful.append(
            "speculative_config is given and a GPU is used: what the core imports for it may touch "
            "CUDA, which a forked core cannot do after its parent has"
        )
    if facts.threads:
        names = ", ".join(facts.threads)
        doubtful.append(f"other threads run, which may hold locks that a child never gets: {names}")
    return never, doubtful


def gather_facts(config: EngineConfig) -> ProcessFacts:
    """Look at this process and at what the configuration asks for. Touches nothing."""
    here = threading.current_thread()
    return ProcessFacts(
        driver=probe_driver(),
        system=sys.platform,
        methods=tuple(multiprocessing.get_all_start_methods()),
        threads=tuple(thread.name for thread in threading.enumerate() if thread is not here),
        daemonic=bool(multiprocessing.current_process().daemon),
        ray_actor=_in_ray_actor(),
        wsl="microsoft" in platform.uname().release.lower(),
        uses_gpu=_uses_gpu(config.device),
        speculative=config.speculative_config is not None,
        chosen=multiprocessing.get_start_method(allow_none=True) or "",
    )


def _uses_gpu(device: str) -> bool:
    if device != "auto":
        return device.startswith("cuda")
    from sample_engine.device.platform import gpu_count

    return gpu_count() > 0


def _in_ray_actor() -> bool:
    ray: Any = sys.modules.get("ray")  # who is in an actor has imported it
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None
