"""Takes the first CUDA tensor of a forked child apart: whose each part is, what can be prepared.

A template imports torch and leaves the driver alone; each of its children goes the way from nothing
to a computed tensor in steps, each with its wall time and its CPU time in user space and in the
kernel. The templates differ in what they have prepared before the fork: libraries mapped, their
pages read, variables of the environment set. What none of them shortens is the driver's. A fresh
interpreter that goes the same way is the peer. Needs a GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from arguments import at_least, needs_gpu
from results_file import parser, publish, table

_NOT_INITIALIZED = 3
_CHILD_SECONDS = 300.0
_DRIVER = "libcuda.so.1"
_BESIDE_TORCH = ("libcudart", "libcublas", "libcudnn", "libnvrtc", "libtorch_cuda", "libc10_cuda")
_OF_THE_DRIVER = ("libcuda.so", "libnvidia-ptxjitcompiler", "libnvidia-gpucomp", "libnvidia-nvvm")


class Template(NamedTuple):
    """What is prepared before the fork: variables, and functions called once torch is imported."""

    env: dict[str, str]
    steps: tuple[str, ...]


TEMPLATES = {
    "as it is": Template({}, ()),
    "driver's library mapped": Template({}, ("map_driver",)),
    "all libraries mapped": Template({}, ("map_driver", "map_others")),
    "mapped, files read": Template({}, ("map_driver", "map_others", "read_files")),
    "one connection": Template({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, ()),
    "one visible GPU": Template({"CUDA_VISIBLE_DEVICES": "0"}, ()),
    "no cache of compiled code": Template({"CUDA_CACHE_DISABLE": "1"}, ()),
    "modules loaded at once": Template({"CUDA_MODULE_LOADING": "EAGER"}, ()),
    "all that helps": Template(
        {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "CUDA_VISIBLE_DEVICES": "0"},
        ("map_driver", "map_others", "read_files"),
    ),
}
FRESH = "a fresh interpreter"


# -- what a template prepares ----------------------------------------------------------------------


def map_driver() -> None:
    """Map the driver's library; nothing of it is called."""
    ctypes.CDLL(_DRIVER)


def map_others() -> None:
    """Map the libraries of the driver and of torch that the first tensor would map."""
    for path in _library_files():
        try:
            ctypes.CDLL(str(path))
        except OSError as error:  # one that only another library may load
            print(f"{path.name} is not mapped: {error}", file=sys.stderr)


def read_files() -> None:
    """Read the libraries once, so that they are in the page cache."""
    for path in _library_files():
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


def _library_files() -> list[Path]:
    import torch

    packages = Path(torch.__file__).parent.parent
    folders = [packages / "torch" / "lib", *packages.glob("nvidia/*/lib"), *_driver_folders()]
    names = (*_BESIDE_TORCH, *_OF_THE_DRIVER)
    found = [path for folder in folders for path in folder.glob("lib*.so*")]
    return [path for path in sorted(found) if path.name.startswith(names) and path.is_file()]


def _driver_folders() -> list[Path]:
    """Return where the driver's library lies, as the loader finds it, without loading it here."""
    script = f"import ctypes; ctypes.CDLL({_DRIVER!r}); print(open('/proc/self/maps').read())"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    paths = [line.split()[-1] for line in done.stdout.splitlines() if "libcuda.so" in line]
    return [Path(paths[0]).parent] if paths else []


# -- the way of a child ----------------------------------------------------------------------------


def _steps() -> dict[str, Callable[[], object]]:
    """Return the steps from nothing to a tensor that was computed with."""
    import torch

    driver: Any = None

    def load() -> None:
        nonlocal driver
        driver = ctypes.CDLL(_DRIVER)

    def call(name: str, *args: Any) -> None:
        status = getattr(driver, name)(*args)
        if status:
            raise RuntimeError(f"{name} returned {status}")

    def context() -> None:
        call("cuDevicePrimaryCtxRetain", ctypes.byref(ctypes.c_void_p()), 0)

    return {
        "map libcuda": load,
        "cuInit": lambda: call("cuInit", 0),
        "context": context,
        "torch.cuda.init": torch.cuda.init,
        "first allocation": lambda: torch.empty(8, device="cuda"),
        "first kernel": lambda: (torch.ones(8, device="cuda"), torch.cuda.synchronize()),
        "sum and copy": lambda: torch.ones(8, device="cuda").sum().item(),
        "the same again": lambda: torch.ones(8, device="cuda").sum().item(),
    }


def go() -> dict[str, list[float]]:
    """Go the way; return of each step the wall, user and kernel time in ms."""
    found = {}
    for name, step in _steps().items():
        usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        step()
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_SELF)
        user, kernel = after.ru_utime - usage.ru_utime, after.ru_stime - usage.ru_stime
        found[name] = [round(seconds * 1000, 3) for seconds in (wall, user, kernel)]
    return found


def template(name: str, rounds: int) -> None:
    """Prepare, then fork one child after the other; a line of JSON for each goes to stdout."""
    import torch  # noqa: F401

    for step in TEMPLATES[name].steps:
        globals()[step]()
    for _ in range(rounds):
        _check_untouched()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.write(write, json.dumps(go()).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read) as answer:
            line = answer.read()
        _, status = os.waitpid(pid, 0)
        if status:
            raise SystemExit(f"{name}: a child ended with status {status}")
        print(line, flush=True)


def _check_untouched() -> None:
    """Make sure that the driver was not initialized here, by its own word where it is mapped."""
    import torch

    touched = torch.cuda.is_initialized()
    try:
        driver = ctypes.CDLL(_DRIVER, mode=os.RTLD_NOLOAD)
    except OSError:  # not mapped: then nothing can have called it
        driver = None
    if driver is not None:
        touched = driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED
    if touched:
        raise SystemExit("the template has initialized the driver: its children cannot use CUDA")


# -- the comparison --------------------------------------------------------------------------------


def _run(name: str, children: int) -> list[dict[str, list[float]]]:
    """Run one template, or fresh interpreters, and return what its children have said."""
    env = {**os.environ, **(TEMPLATES[name].env if name in TEMPLATES else {})}
    times = 1 if name in TEMPLATES else children
    told: list[dict[str, list[float]]] = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, __file__, "--inside", name, "--children", str(children)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
            timeout=_CHILD_SECONDS,
            check=True,
        )
        told += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return told


def main() -> None:
    """Measure, print, keep the results if that is asked for."""
    made = parser("The first CUDA tensor of a child, in parts.", rounds=3)
    made.add_argument(
        "--children", type=at_least(1), default=5, help="of a template a round (default 5)"
    )
    made.add_argument("--inside", help="be this template (the benchmark starts itself so)")
    options = made.parse_args()
    if options.inside == FRESH:
        print(json.dumps(go()))
        return
    if options.inside:
        template(options.inside, options.children)
        return
    needs_gpu(made)
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in (*TEMPLATES, FRESH)}
    for number in range(options.rounds):
        for name, told in found.items():
            print(f"round {number + 1}: {name}", file=sys.stderr, flush=True)
            told += _run(name, options.children)
    steps = list(found[FRESH][0])
    rows, figures = [], {}
    for name, told in found.items():
        parts = {step: _medians([one[step] for one in told]) for step in steps}
        whole = statistics.median(sum(one[step][0] for step in steps[:-1]) for one in told)
        figures[name] = {"whole_ms": round(whole, 2), "parts": parts}
        rows.append([name, f"{whole:.1f}", *(_shown(parts[step]) for step in steps)])
    header = ["wall (user + kernel) ms", "whole", *steps]
    data = {"rounds": options.rounds, "children": options.children, "figures": figures}
    publish(
        "first_tensor", "First CUDA tensor in a child", table(header, rows), data, save=options.save
    )


def _medians(of_step: list[list[float]]) -> list[float]:
    return [round(statistics.median(times), 2) for times in zip(*of_step, strict=True)]


def _shown(times: list[float]) -> str:
    wall, user, kernel = times
    return f"{wall:.1f} ({user:.1f} + {kernel:.1f})"


if __name__ == "__main__":
    main()
