"""In what the software graph differs from a CUDA graph, and errors of code that needs a GPU.

Code under test runs on CPU tensors here. Where torch refuses that, its error is explained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_cudafork.capture.interface.lines import line_of_traceback, shown
from pytest_cudafork.errors import GraphNotJudgedError
from pytest_cudafork.settings.devices import AS_IF_A_GPU, AS_IF_A_GPU_MEANS

DIFFERENCES = """\
- Streams and events: work runs in the order of the calls, so races between streams are not seen. \
Where streams are stand-ins it is known which were forked from the captured one and whether all \
are joined at its end; work on others, and waiting for events of before the capture, is not \
judged. Elsewhere only the current stream may be asked for.
- Device and host: every tensor counts as one on the device, but under a present face, where it \
is known of most whether they lie on the host: with those the host works at once, and copies are \
taken or refused as by CUDA. A number from torch.tensor(2.0) or a Python number is passed by \
value; a 0-dim tensor from outside is read at each replay, unless \
SoftwareBackend(host_scalars=[...]) names it, it was gone by the end of the capture, or stands \
beside tensors on "cuda" of a present face and was made on the host. Without such a face, a \
tensor made from a list within the capture is refused even where only the host would use it, and \
to("cpu") where the line of code says "cpu"; a device in a variable is the device of the test.
- Memory: blocks return to the pool as CUDA's do and later captures on the pool get them, but they \
are not split, so other tensors may share memory than on a GPU. Freed memory from outside is an \
error here; a GPU reads what lies there. Memory that nothing wrote holds NaN, True or huge \
integers; a GPU has leftovers.
- Kernels: an operator is one node here and may be several kernels, or none, on a GPU. Library \
workspaces (cuBLAS, cuDNN), atomics and the order of sums are those of the CPU. Functions of \
torch.compile run as the Python code they were made from, flex_attention, scan and their kind as \
the unfused Python code of torch. What an interpreted Triton kernel reads and writes is not known: \
all its tensors count as both, and its programs run one after another.
- Refusals: a synchronization inside an operator's CUDA kernel is known for the operators of torch \
that were tried on both backends (docs/reference/graph-operators.md says which, and where they \
still disagree), not for those of other libraries. What torch.fx traces within the capture is not \
judged. An optimizer with capturable=True needs fused=True, too.
- Custom operators: Python kernels run in the capture, operator by operator; native ones are one \
node. Writes past torch (numpy arrays on the same memory, ctypes) happen at once and are not \
recorded.
- Random numbers: the default generator of the CPU takes the place of the device's; it advances at \
each replay and can be seeded between replays. Numbers differ from a GPU's.
- Threads: operators of other Python threads are noticed in new threads, in tasks of executors and \
in threads that make a Python call meanwhile; not those of threads without Python, of a loop that \
calls no function, or while a profiler (sys.setprofile) is on.
- Time: Python code between the operators runs once, as on a GPU; how long anything takes says \
nothing of a GPU."""

_CUDA = (
    "the code under test calls CUDA, and the software graph runs it on CPU tensors: take the "
    "device from the graph_backend fixture, or test it with the backend 'cuda' on a GPU; or, where "
    f"the code itself says 'cuda': pytest {AS_IF_A_GPU} {AS_IF_A_GPU_MEANS}"
)
_MEANINGS = (
    (
        "capturable=True",
        "torch allows capturable=True alone on a GPU only. Give the optimizer fused=True as well "
        "(Adam, AdamW): both together are taken here and by a CUDA graph; or test it with the "
        "backend 'cuda'",
    ),
    ("Torch not compiled with CUDA", _CUDA),
    ("Tried to instantiate dummy base class", _CUDA),
    ("requires CUDA support", _CUDA),
    ("Found no NVIDIA driver", _CUDA),
    ("driver version is insufficient", _CUDA),
    ("no CUDA-capable device", _CUDA),
)


@contextlib.contextmanager
def explaining_gpu_code() -> Iterator[None]:
    """Explain errors of the code in a ``with`` which mean that it needs a GPU; others pass.

    Raises:
        GraphNotJudgedError: the code cannot run on a CPU.

    """
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        text = str(error)
        for words, meaning in _MEANINGS:
            if words in text:
                where = line_of_traceback(error.__traceback__)
                at = f" at {shown(where)}" if where else ""
                raise GraphNotJudgedError(
                    f"{type(error).__name__}{at}: {text.splitlines()[0][:200]}\n{meaning}"
                ) from error
        raise
