"""The witness on a real driver: our library, named to the driver by CUDA_INJECTION64_PATH.

The driver loads it in the first ``cuInit``; whether that came earlier, ``probe.py`` tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_cudafork.compat.unpatched import contextlib, os
from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.driver.native_libs import NativeWitness
from pytest_cudafork.settings import environment


@dataclass
class InjectionWitness:
    """The injection, installed in this process, or the reason why it is not."""

    native: NativeWitness | None
    reason: str = ""
    _undo: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def undo(self) -> None:
        """Take back the environment and the signal. The library itself stays mapped."""
        self._undo.close()


def variables(device: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variable by which a program has it that is not a watched Python; {}: it is taken.

    Args:
        device: Whatever is real.
        environ: The environment that the program would have otherwise.

    """
    ours = native_libs.INJECTION
    return {} if environ.get(environment.INJECTION) else {environment.INJECTION: ours}


def install(device: str = "real") -> InjectionWitness:
    """Have the driver call our library in the first cuInit, here and in child processes.

    ``device`` is whatever is real. A profiler (nsys, compute-sanitizer) uses the same variable: it
    is then left alone, and the witness says so in `reason`.

    Raises:
        NativeUnavailable: the native libraries were not built.

    """
    native_libs.require()
    ours, theirs = native_libs.INJECTION, environment.value(environment.INJECTION)
    if theirs and theirs != ours:
        name = environment.INJECTION
        return InjectionWitness(None, f"{name} is already set to {theirs!r}; left alone")
    undo = contextlib.ExitStack()
    environment.set_variable(undo, environment.INJECTION, ours)
    # Loaded and armed now: inside the driver's lock as little as possible is left to be done.
    native = NativeWitness(native_libs.load(native_libs.INJECTION, os.RTLD_LOCAL | os.RTLD_NOW))
    undo.callback(native.arm())
    return InjectionWitness(native, "", undo)
