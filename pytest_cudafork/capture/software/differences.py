"""Owns the words on where the software graph can answer otherwise than a CUDA graph.

They are one string, for a report; nothing here knows how the differences come about.
"""

from __future__ import annotations

__all__ = ["DIFFERENCES"]

DIFFERENCES = """\
- Streams and events: there are none. Work on a side stream that is not joined, races between \
streams, torch.cuda.synchronize and event queries are not seen.
- Device and host: every tensor counts as one on the device. A number from torch.tensor(2.0) or a \
Python number is passed by value; a 0-dim tensor from outside is read at each replay, unless \
SoftwareBackend(host_scalars=[...]) names it or it was gone by the end of the capture. A tensor \
made from a list within the capture is refused even where only the host would use it. to("cpu") is \
refused where the line of code says "cpu"; a device in a variable is the device of the test.
- Memory: blocks return to the pool as CUDA's do and later captures on the pool get them, but they \
are not split, so other tensors may share memory than on a GPU. Freed memory from outside is an \
error here; a GPU reads what lies there. Memory that nothing wrote holds NaN, True or huge \
integers; a GPU has leftovers.
- Kernels: an operator is one node here and may be several kernels, or none, on a GPU. Library \
workspaces (cuBLAS, cuDNN), atomics and the order of sums are those of the CPU. Functions of \
torch.compile run as the Python code they were made from, flex_attention, scan and their kind as \
the unfused Python code of torch. What an interpreted Triton kernel reads \
and writes is not known: all its tensors count as both, and its programs run one after another.
- Refusals: a synchronization inside an operator's CUDA kernel is known only for those that torch \
marks as having results of unknown shape. An optimizer with capturable=True needs fused=True, too.
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
