"""The kinds of errors: what each means, what a traceback cannot show of it, and what shows that."""

from __future__ import annotations

from typing import NamedTuple

from pytest_cudafork.settings.devices import AS_IF_A_GPU, AS_IF_A_GPU_MEANS


class Kind(NamedTuple):
    """A kind of error.

    Attributes:
        name: What it is called, also in JSON.
        title: What has happened, in a line.
        meaning: What that means.
        unseen: What the traceback does not show, "" if nothing of importance.
        next: What to run or do next; ``{program}`` stands for the program.

    """

    name: str
    title: str
    meaning: str
    unseen: str
    next: tuple[str, ...]


_RUN = (
    "python -m pytest_cudafork run {program}    # names the lines that initialize CUDA and fork; "
    "no GPU needed"
)
_GUARD = (
    "python -m pytest_cudafork run --guard {program}    # refuses the fork, with its own traceback"
)
_SUITE = "pytest --cuda-fork-check    # the same for a test suite"
_WORKAROUND = (
    "start the child with multiprocessing.get_context('spawn') or 'forkserver', or initialize CUDA "
    "only after the fork"
)
_LINES = (
    "the line that initialized CUDA in the parent, and the line that forked: they ran before, in "
    "another process"
)

POISONED = Kind(
    "poisoned-child",
    "a child that was forked from a process with CUDA initialized has used CUDA",
    "A forked child inherits the state of the CUDA driver, and cannot use it. Torch says so "
    "before it asks the driver, which would answer 'initialization error'.",
    _LINES,
    (_WORKAROUND, _RUN, _GUARD, _SUITE),
)
INITIALIZATION = Kind(
    "initialization-failed",
    "the CUDA driver could not be initialized in this process",
    "Two causes look alike: the process was forked from one that had initialized CUDA by something "
    "else than torch (another library, a call through ctypes), which torch's own check does not "
    "see; or there is no usable driver (nvidia-smi says which).",
    _LINES,
    (
        _RUN,
        "nvidia-smi    # works? then a fork is to blame, and not the driver",
        _SUITE,
    ),
)
NO_GPU = Kind(
    "no-gpu",
    "no driver or no GPU is to be seen by this process",
    "That is not about forks: the driver is missing, too old, or CUDA_VISIBLE_DEVICES hides the "
    "GPUs. A mask that is changed after CUDA was initialized changes nothing.",
    "",
    (
        "nvidia-smi; echo $CUDA_VISIBLE_DEVICES    # what there is, and what is hidden",
        "python -m pytest_cudafork run --device=phantom:sm_90 {program}    # as if there was a GPU",
    ),
)
NO_CUDA_BUILD = Kind(
    "torch-without-cuda",
    "this torch is built without CUDA (a CPU wheel), and was asked for CUDA",
    "Neither the driver nor forks have to do with it: no GPU can be used with this torch, whatever "
    "the machine has.",
    "",
    (
        "install a build of torch with CUDA in this environment, or do not ask for CUDA",
        f"pytest {AS_IF_A_GPU}    # {AS_IF_A_GPU_MEANS}",
        "python -c 'import torch; print(torch.__version__, torch.version.cuda, torch.__file__)'    "
        "# which build, and from where; None: built without CUDA",
    ),
)
CAPTURE = Kind(
    "capture-refused",
    "something was done while a CUDA graph was captured that cannot be captured",
    "Work of a capture is recorded and does not run: reading a value (item, nonzero, a "
    "comparison), copying from or to pageable memory, or synchronizing is refused. So are work on "
    "the legacy default stream beside it, replaying another graph, and asking a generator's seed.",
    "",
    (
        "capture the same code in a test with capture_pair or assert_replay_equals_eager: they "
        "name the line and what it did, on a CPU as well",
        "torch.cuda.set_sync_debug_mode('error') before the capture, in the warm-up    # the line",
    ),
)
CAPTURE_BROKEN = Kind(
    "capture-broken",
    "a capture had failed before, and this is only what follows",
    "The first error has ended the capture; whatever is asked of it afterwards fails like this. "
    "The cause stands earlier in the log, or was swallowed.",
    "the first error, if no other is found above",
    (
        "look for the first error of the log, not the last",
        "capture the same code in a test with capture_pair or assert_replay_equals_eager",
    ),
)
RANDOM = Kind(
    "random-numbers-after-a-capture",
    "a random number was asked for outside a capture, and the generator believes it is in one",
    "A capture that failed before has left torch's generator as it was within: random numbers work "
    "only in that capture. It is a consequence: the capture that failed is the cause.",
    "the capture that failed",
    (
        "look for an earlier error of a capture in the log; one that was caught leaves this behind",
        "pytest --cuda-fork-health    # names the test that leaves a capture behind",
    ),
)
THREADS = Kind(
    "fork-with-threads",
    "a process with threads was forked",
    "The child lacks the threads, and waits for ever for locks that they held. Whether CUDA was "
    "initialized as well, the warning does not say.",
    "whether the process had initialized CUDA",
    (_RUN, "start the children with multiprocessing.get_context('spawn')"),
)
BOOTSTRAP = Kind(
    "spawn-without-main-guard",
    "a child that is started by spawn imports the main module, which starts children itself",
    "It comes up when fork is replaced by spawn: the script needs `if __name__ == '__main__':` "
    "around what starts processes.",
    "",
    ("put what starts processes below `if __name__ == '__main__':`", _RUN),
)
CONSEQUENCE = Kind(
    "consequence",
    "another process has failed, and this one only says so",
    "The error to look for stands in the log of the worker or the engine core.",
    "the error of the other process, if no other is found above",
    ("look for the error above this one, in the lines of the worker", _RUN),
)
SPAWN_FORCED = Kind(
    "spawn-forced",
    "CUDA was initialized before the workers were started, so they are started by spawn",
    "No error: the engine has seen it in time. It costs a start anew, and the line that touches "
    "early may break other forks.",
    "the line that initialized CUDA",
    (_RUN, "python -m pytest_cudafork imports PACKAGE    # which modules touch when imported"),
)
TOLD = Kind(
    "told-already",
    "the log is one of pytest-cudafork, and names the lines",
    "The line to change stands behind 'CUDA was initialized at'. The one before it is the line "
    "that forks, or that of the child.",
    "",
    (
        "read on below that message: the imports that led there, and what to do",
        "python -m pytest_cudafork imports PACKAGE    # which modules touch when imported",
    ),
)

KINDS = (
    *(TOLD, POISONED, INITIALIZATION, CAPTURE, RANDOM, BOOTSTRAP, THREADS),
    *(NO_GPU, NO_CUDA_BUILD, SPAWN_FORCED, CAPTURE_BROKEN, CONSEQUENCE),
)
"""All, causes before what follows from others: the order in which they are told."""
