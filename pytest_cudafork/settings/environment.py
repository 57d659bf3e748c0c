"""Environment variables: every one that the plugin reads or sets, and the functions to do so.

The session tells its children what they have to know by variables of its own (``INTERNAL``); they
are read when they are needed and may change in any release. Variables of others are read
(``READ``), or set for a while and restored (``CHANGED``). Those of the options, as
``PYTEST_CUDA_FORK_CHECK``, follow from the table in ``options.py``.

The whole environment of a process is handed to its children by ``process/``, unread.
``_startup/sitecustomize.py`` and the libraries in C read theirs by themselves, under these names.
"""

from __future__ import annotations

import contextlib
from os import environ, pathsep  # bound now: a test may put another mapping in its place

# What a session tells its children.
LEDGER = "_CUDAFORK_LEDGER"
OWNER = "_CUDAFORK_OWNER"
PHASE = "_CUDAFORK_PHASE"
WATCH = "_CUDAFORK_WATCH"
ROOT = "_CUDAFORK_ROOT"
FORK_OK = "_CUDAFORK_FORK_OK"
ISOLATED = "_CUDAFORK_ISOLATED"
FACE = "_CUDAFORK_FACE"
GPU_LOCKS = "_CUDAFORK_GPU_LOCKS"
PATCHES = "_CUDAFORK_PATCHES"
TEST_SESSION = "_CUDAFORK_SESSION"
PHANTOM_MEMORY = "_CUDAFORK_PHANTOM_MEMORY"
REPLAYS = "_CUDAFORK_REPLAYS"
CAPTURES = "_CUDAFORK_CAPTURES"
BLOCKS = "_CUDAFORK_BLOCKS"

PROGRAM = "program"
"""What ``PHASE`` says in a program that is watched by itself, and not in a session."""

# What is set for a while.
PYTHON_PATH = "PYTHONPATH"
INJECTION = "CUDA_INJECTION64_PATH"
LIBRARY_PATH = "LD_LIBRARY_PATH"
TRITON_DRIVER = "TRITON_LIBCUDA_PATH"
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
GPU_ORDER = "CUDA_DEVICE_ORDER"
VLLM_METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
COMMON_METHOD = "MULTIPROCESSING_START_METHOD"
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

# What a user sets for programs that others start.
RUN = "PYTEST_CUDA_FORK_RUN"

# What is read alone.
TEMPORARY = ("TMPDIR", "TEMP", "TMP")
BREAKPOINT = "PYTHONBREAKPOINT"
TEST = "PYTEST_CURRENT_TEST"
ADDOPTS = "PYTEST_ADDOPTS"
XDIST_WORKERS = "PYTEST_XDIST_WORKER_COUNT"
NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
HIP_MASK = "HIP_VISIBLE_DEVICES"
ROCR_MASK = "ROCR_VISIBLE_DEVICES"
CORE_DUMP = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"
CORE_DUMP_FILE = "CUDA_COREDUMP_FILE"
PRELOAD = "LD_PRELOAD"
INTERPRET = "TRITON_INTERPRET"
NO_CACHING = "PYTORCH_NO_CUDA_MEMORY_CACHING"
BLOCKING = "CUDA_LAUNCH_BLOCKING"
BUILDKITE = "BUILDKITE"
GITHUB_ACTIONS = "GITHUB_ACTIONS"
GITHUB_WORKSPACE = "GITHUB_WORKSPACE"
GITHUB_STEP_SUMMARY = "GITHUB_STEP_SUMMARY"

_OURS = ("PYTEST_CUDA_FORK", "PYTEST_CUDAFORK")
PREFIX = "_CUDAFORK_"
"""What the names of all internal variables begin with."""

INTERNAL = {
    LEDGER: "the file that every process of the session records into; without it nothing is",
    OWNER: "pid of the pytest process for which a process works",
    PHASE: 'what the session does: "start", "collect test_it.py"; empty in a test, or "run 2"; '
    '"program" where there is none',
    WATCH: "the settings of the watch, which a Python process started by exec takes over",
    ROOT: "the folder that holds the package, for processes of another environment",
    FORK_OK: "the reason of the marker cuda_fork_ok, while its test runs",
    ISOLATED: '"1" for a process made to run one isolated test; it isolates nothing again',
    FACE: "the GPUs that the phantom driver shows",
    PATCHES: "the folder of what child_patch has patched, which a process of the test takes over",
    GPU_LOCKS: "the folder of the locks of GPUs, for sessions that a test with GPUs starts",
    TEST_SESSION: "by which the session that settles GPUs knows what its tests have started",
    CAPTURES: "how the captures of a program are looked at, which knows no pytest",
    BLOCKS: "in which blocks of watch() a process was started, by their names, outermost first",
    REPLAYS: "how the replays of graphs are spoiled, in a process that runs a test once more",
    PHANTOM_MEMORY: "for tests: a file that says who holds memory on the phantom's GPUs",
}
"""What each internal variable is for."""

CHANGED = {
    PYTHON_PATH: "Python processes started by exec find the package's sitecustomize",
    INJECTION: "a real driver loads the witness",
    LIBRARY_PATH: "child processes find the phantom driver",
    TRITON_DRIVER: "Triton finds the phantom driver",
    VISIBLE_GPUS: "the GPUs of a test marked gpus(n)",
    GPU_ORDER: "what the numbers of GPUs mean",
    VLLM_METHOD: "the start method of a test marked start_methods, for vLLM",
    COMMON_METHOD: "likewise, for programs that look for it; Python's multiprocessing does not",
    NO_BYTECODE: "no compiled file of one commit is taken for another's, with --fail-on",
}
"""Why each of these is set for a while; the user's own value comes back."""

READ = {
    **dict.fromkeys(TEMPORARY, "the folder for the ledger of a program that is run by itself"),
    RUN: "the file for the report on a Python program that others start; %p is its process",
    ADDOPTS: "whether an option stands there, for the header that -v shows",
    BREAKPOINT: "which debugger breakpoint() starts in a process of its own",
    TEST: "the test to which a record belongs, set by pytest",
    XDIST_WORKERS: "how many workers of pytest-xdist share the cores",
    NVML_CHECK: "whether torch.cuda.is_available asks NVML, and so initializes nothing",
    CORE_DUMP: "whether the driver writes a GPU core dump when a kernel fails",
    CORE_DUMP_FILE: "where it writes that",
    PRELOAD: "by the doctor: what is in every process before Python is",
    INTERPRET: "by the doctor: whether kernels in Triton run as Python code",
    NO_CACHING: "by the doctor: whether torch keeps no memory, which captures of graphs need",
    BLOCKING: "by the doctor: whether each launch waits for its kernel",
    BUILDKITE: "whether Buildkite runs the session, whose log folds groups of lines",
    GITHUB_ACTIONS: "whether GitHub Actions runs it, likewise and for --cuda-fork-github",
    GITHUB_WORKSPACE: "the checkout, to which the files of GitHub's annotations are relative",
    GITHUB_STEP_SUMMARY: "the file to which the summary of a step is added",
    HIP_MASK: "which of AMD's GPUs are waited for",
    ROCR_MASK: "which of AMD's GPUs are waited for",
}
"""What each of these is read for."""


def value(name: str, default: str = "") -> str:
    """Return a variable as it is now."""
    return environ.get(name, default)


def optional(name: str) -> str | None:
    """Return a variable as it is now; None if it is not set, which may differ from empty."""
    return environ.get(name)


def names_like_ours() -> list[str]:
    """Return the variables that are not empty and are called as those of options, or nearly so."""
    return sorted(name for name, text in environ.items() if text and name.startswith(_OURS))


def is_set(name: str) -> bool:
    """Whether a variable is there, be it empty."""
    return name in environ


def take(name: str) -> str:
    """Return a variable and remove it, so that no child inherits it; "" if it is not set."""
    return environ.pop(name, "")


def put(name: str, text: str) -> None:
    """Set a variable for good."""
    environ[name] = text


def set_variable(undo: contextlib.ExitStack, name: str, text: str) -> None:
    """Set a variable until ``undo`` is closed."""
    undo.callback(_restore, name, environ.get(name))
    environ[name] = text


def unset_variable(undo: contextlib.ExitStack, name: str) -> None:
    """Remove a variable, if it is set, until ``undo`` is closed."""
    if name in environ:
        undo.callback(_restore, name, environ.pop(name))


def prepend_path(undo: contextlib.ExitStack, name: str, folder: str) -> None:
    """Put a folder first in a list of folders, unless it is there, until ``undo`` is closed."""
    former = environ.get(name, "")
    text = with_folder(former, folder)
    if text != former:
        set_variable(undo, name, text)


def with_folder(former: str, folder: str) -> str:
    """Return a list of folders with another one in it: first, unless it is there."""
    folders = former.split(pathsep) if former else []
    return former if folder in folders else pathsep.join([folder, *folders])


def _restore(name: str, former: str | None) -> None:
    if former is None:
        environ.pop(name, None)
    else:
        environ[name] = former
