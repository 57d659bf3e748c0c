"""What checks of graphs use of torch that has no public name.

Like the modules of ``capture``, which alone import it, it is imported when a test captures a graph,
as it imports torch. Names that some releases lack are asked for where they are used; what is done
without them is said there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _device as torch_device
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DispatchMode", "ObservingMode", "OpOverload"]

# -- operators: torch's dispatcher calls a mode with an OpOverload, which bears its schema ---------

schema_of: Any = attrgetter("_schema")
"""``schema_of(op)``: the ``torch.FunctionSchema`` of an ``OpOverload``."""

OPERATORS = OpOverload.__module__
"""The module whose code calls an operator."""

CPU_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""For ``OpOverload.redispatch``: the kernel of an operator for the CPU."""

_KERNEL_KEYS = ("CPU", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def is_composite(op: Any) -> bool:
    """Whether an operator is made of others (a kernel for ``CompositeImplicitAutograd``)."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return bool(op.has_kernel_for_dispatch_key(key))


def has_python_kernel(name: str, overload: str) -> bool:
    """Whether an operator (``namespace::name``) has a kernel for the CPU that is Python code.

    ``torch.library._impls`` lists those that were registered from Python.
    """
    known = getattr(torch.library, "_impls", ())
    namespace, name = name.split("::", 1)
    spelled = f"{name}.{overload}" if overload else name
    return any(f"{namespace}/{spelled}/{key}" in known for key in _KERNEL_KEYS)


_NAMESPACES_OF_TORCH = ("aten", "c10d", "c10d_functional", "fsdp", "inductor", "prims", "quantized",
                        "rngprims", "streams", "symm_mem")  # fmt: skip


def python_kernels_for_cuda() -> Iterator[tuple[Any, bool]]:
    """Give operators of others with Python code for CUDA, and whether the CPU has no kernel.

    Those with code for the CPU alone are left out.
    """
    for each in list(getattr(torch.library, "_impls", ())):
        namespace, name, key = each.split("/", 2)
        if namespace in _NAMESPACES_OF_TORCH or key not in ("CUDA", *_KERNEL_KEYS[1:]):
            continue
        full = f"{namespace}::{name}"
        packet = getattr(getattr(torch.ops, namespace), name.partition(".")[0], None)
        if packet is None or torch._C._dispatch_has_kernel_for_dispatch_key(full, "CPU"):
            continue
        alone = not torch._C._dispatch_has_computed_kernel_for_dispatch_key(full, "CPU")
        yield getattr(packet, name.partition(".")[2] or "default"), alone


unregister: Any = methodcaller("_destroy")
"""``unregister(library)``: take back what a ``torch.library.Library`` has registered, now."""


def python_kernel(op: Any) -> Any:
    """Return the Python code of a higher-order operator for plain tensors; None: it has none."""
    kernels: dict[Any, Any] = getattr(op, "py_kernels", {})
    dense = kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return dense or kernels.get(torch._C.DispatchKey.CPU)


NO_STORAGE = (RuntimeError, ValueError)
"""What a tensor without a storage raises that is asked for it: sparse and fake ones and wrappers;
parameters that a lazy module has not made yet raise a ``ValueError``."""


def handles_operators(kind: Any) -> bool:
    """Whether tensors of a class handle operators themselves.

    Where ``.data`` is taken, torch hands a mode the classes of others as well.
    """
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


MODE_CHECK = "_get_current_dispatch_mode"
"""Modules of some higher-order operators ask by this name whether a mode is active, and insist
that none is."""


def below_autograd() -> contextlib.AbstractContextManager[object]:
    """Return a context in which operators are called past autograd."""
    found: contextlib.AbstractContextManager[object] = torch._C._AutoDispatchBelowAutograd()
    return found


without_torch_function: Any = torch._C.DisableTorchFunction
"""A context in which no ``__torch_function__`` is called."""

torch_function_is_on: Any = torch._C._is_torch_function_enabled
"""Whether that of subclasses is called."""


# -- dispatch modes: those of other threads are pushed and popped without a ``with`` ---------------


class DispatchMode(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    """A mode that sees operators and has nothing to do with torch's compiler.

    It is asked about higher-order operators, too (they are no ``OpOverload``); torch refuses them
    under a mode that does not say so.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__torch_dispatch__" in cls.__dict__:
            leave_alone(cls.__dict__["__torch_dispatch__"])

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own way imports the compiler at the first operator, which takes seconds
        return False


def leave_alone(function: Any) -> None:
    """Let torch.compile leave a function alone, with all that it calls.

    Where a compiled function breaks its graph, whatever Python runs in between is compiled as well:
    what a mode does with an operator would be, and anew for each tensor.
    """
    compiler = torch._C._dynamo.eval_frame
    skip = compiler._FrameAction.SKIP
    compiler.set_code_exec_strategy(function.__code__, compiler._FrameExecStrategy(skip, skip))


class ObservingMode(DispatchMode):
    """A mode that looks on: torch.compile compiles as it would have done without it.

    ``is_infra_mode`` and ``ignore_compile_internals`` are names of torch 2.9 and later; releases
    before it do not ask.
    """

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether the mode belongs to torch's own machinery."""
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether what the compiler does inside is none of its business."""
        return True


def without_dispatch() -> contextlib.AbstractContextManager[object]:
    """Return a context in which no mode and no subclass sees operators."""
    found: contextlib.AbstractContextManager[object] = torch._C._DisableTorchDispatch()
    return found


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return what lies in a tensor that ``torch.func`` has wrapped; another one as it is."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


MARKS = "_nvtx"
"""In ``torch.cuda.nvtx``: what its functions call; a build without CUDA has one that raises."""


class NoMarks:
    """Stands for it: marks and ranges that no profiler sees."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: 0


def raises_for_marks(module: Any) -> bool:
    """Whether marks cannot be made, as in a build without CUDA."""
    return getattr(getattr(module, MARKS, None), "_fail", None) is not None


TRACERS = ("trace", "trace_module", "_get_trace_graph")
"""Functions of ``torch.jit`` that run code to trace it; the last is what ``torch.onnx`` calls."""


def passed_on() -> tuple[type, ...]:
    """Return the tensors that have no memory of their own and know their operators themselves."""
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return FakeTensor, FunctionalTensor


CUDA_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
ELSEWHERE_KEYS: Any = torch._C.DispatchKeySet(torch._C.DispatchKey.XPU)
"""For ``OpOverload.redispatch``: the kernel for CUDA, and one for any device if there is one."""


def active_modes() -> Iterable[Any]:
    """Return the modes that are active in this thread, outermost first."""
    stack: Iterable[Any] = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return stack


def active_function_modes() -> Iterable[Any]:
    """Return the modes of functions that are active in this thread, outermost first."""
    stack: Iterable[Any] = torch.overrides._get_current_function_mode_stack()
    return stack


def count_modes() -> int:
    """Return how many modes are active in this thread."""
    return int(torch._C._len_torch_dispatch_stack())


def push_mode(mode: Any) -> None:
    """Make a mode the innermost one of this thread, without the flags of ``__enter__``."""
    torch._C._push_on_torch_dispatch_stack(mode)


def pop_mode() -> None:
    """Take the innermost mode of this thread off."""
    torch._C._pop_torch_dispatch_stack(None)


def mode_at(index: int) -> Any:
    """Return an active mode of this thread; 0 is the outermost."""
    return torch._C._get_dispatch_stack_at(index)


def is_traced() -> bool:
    """Whether torch.fx traces what this thread does, operator by operator.

    Its mode lies below all modes of users, and so below those of a capture.
    """
    keys = getattr(torch._C, "_TorchDispatchModeKey", None)
    return keys is not None and torch._C._get_dispatch_mode(keys.PROXY) is not None


FAKES = "torch._subclasses."
"""The package that makes fake tensors of others."""


def has_fake_tensors() -> bool:
    """Whether operators of this thread make fake tensors, which have shapes and no contents."""
    keys = getattr(torch._C, "_TorchDispatchModeKey", None)
    return keys is not None and torch._C._get_dispatch_mode(keys.FAKE) is not None


def default_device() -> Any:
    """Return where a ``with torch.device(...)`` or a default device puts tensors; None: nowhere."""
    modes = active_function_modes()
    set_by = [mode for mode in modes if isinstance(mode, torch_device.DeviceContext)]
    return set_by[-1].device if set_by else None


def is_device_set() -> bool:
    """Whether tensors are made where a ``with torch.device(...)`` says, or a default device."""
    return default_device() is not None


def makes_tensors(function: Any) -> bool:
    """Whether a function makes tensors where a default device says."""
    return function in torch_device._device_constructors()


def know_functions_that_make_tensors() -> None:
    """Let torch list the functions that a device is set for, before one of them is replaced.

    ``torch.utils._device`` keeps the list for ever.
    """
    torch_device._device_constructors()


# -- tensors and their memory ----------------------------------------------------------------------

identity_of: Any = attrgetter("_cdata")
"""``identity_of(x)``: the address of the object of C++ behind a storage or a generator."""


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was changed in place; -1: those of inference mode do not count."""
    return -1 if tensor.is_inference() else int(tensor._version)


def storage_behind(weak: Any) -> Any:
    """Return the storage that a ``StorageWeakRef`` refers to; None: it is gone."""
    return torch.UntypedStorage._new_with_weak_ptr(weak.cdata)


copy_lists: Any = torch._foreach_copy_
"""Copies the tensors of a list to those of another one."""


def untyped(storage: Any) -> Any:
    """Return what lies in a ``TypedStorage``; an untyped storage as it is."""
    return getattr(storage, "_untyped_storage", storage)


def places_of_saved() -> list[Any]:
    """Return what says in saved files where memory lies, and puts it there, for each device.

    Each is ``(priority, tag, put)``; the first one that gives something counts.
    """
    found: list[Any] = torch.serialization._package_registry
    return found


def has_no_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory of its own, though its layout says so.

    Forward derivatives make such that stand for zeros, and so are results of collectives that are
    not waited for yet: asking their storage for an address raises. A parameter that a lazy module
    has not made yet has no shape either.
    """
    if torch.nn.parameter.is_lazy(tensor):
        return True
    try:
        tensor.untyped_storage().data_ptr()
    except NO_STORAGE:
        return True
    return False


def finished_work() -> Any:
    """Return a ``Work`` of ``torch.distributed`` that is done, as operators return it.

    ``torch._C._distributed_c10d.FakeWork`` is torch's own stand-in for one.
    """
    from torch._C._distributed_c10d import FakeWork

    return FakeWork().boxed()


def wait_for_collective(result: torch.Tensor) -> None:
    """Wait for the result of a functional collective (``ops._c10d_functional.wait_tensor``)."""
    torch.ops._c10d_functional.wait_tensor(result)


def is_freed_by_torch(storage: torch.UntypedStorage) -> bool:
    """Whether torch's allocator owns the memory of a storage; taken for granted if torch is mute.

    ``torch._C._has_Standard_Deleter`` tells it from memory of cupy, other processes or mappings.
    """
    ask = getattr(torch._C, "_has_Standard_Deleter", None)
    return bool(ask(identity_of(storage))) if ask is not None else True


def conjugated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with the conjugate bit set."""
    return torch._conj(tensor)


def negated(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor with the negative bit set."""
    return torch._neg_view(tensor)


BACKWARD = torch.autograd, "_engine_run_backward"
"""What ``torch.autograd.backward`` and ``grad`` call to run a backward pass: ``(roots, ...)``."""

GROUPING = torch._C, "_group_tensors_by_device_and_dtype"
"""By this, optimizers and the clipping of gradients sort tensors by place: no mode sees it."""

# -- optimizers ------------------------------------------------------------------------------------

OPTIMIZER_CHECKS = (
    "_accelerator_graph_capture_health_check",
    "_cuda_graph_capture_health_check",
)
"""Methods by which an optimizer refuses to be captured; 2.9 and later have both, earlier one."""

# -- CUDA ------------------------------------------------------------------------------------------


def is_in_bad_fork() -> bool:
    """Whether this process was forked after torch had initialized CUDA."""
    return bool(torch.cuda._is_in_bad_fork())


def visible_gpus() -> int:
    """Return how many GPUs NVML shows, without initializing CUDA; -1: not known."""
    return int(getattr(torch.cuda, "_device_count_nvml", lambda: -1)())


def leave_pool(device: int, pool: Any) -> None:
    """Let the allocator of a device allocate in no graph's pool any more."""
    torch._C._cuda_endAllocateToPool(device, pool)


def empty_host_cache() -> None:
    """Give pinned memory of the host back that nothing uses; a build for the CPU has none."""
    if (empty := getattr(torch._C, "_host_emptyCache", None)) is not None:
        empty()


def profiler_mark(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a mark for torch's profiler that does not pass the dispatcher, so no mode sees it."""
    mark: contextlib.AbstractContextManager[object] = torch._C._profiler._RecordFunctionFast(name)
    return mark


WRAPPERS = "_make_wrapper_subclass"
"""Static method of ``Tensor`` by which subclasses make tensors without memory of their own."""

BETWEEN_GPUS: Any = torch._C
"""Has ``_scatter`` and the like, which ``torch.nn.parallel.comm`` calls."""

COPY_STREAMS = torch.nn.parallel._functions, "_streams"
"""The streams by which ``DataParallel`` copies a batch, for each GPU; None: there are none yet."""

# -- torch.compile ---------------------------------------------------------------------------------

COMPILER = "torch._dynamo"
"""The package that compiles, imported by the first call of a compiled function."""


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Let compiled functions run as they are written; ``torch.compiler.set_stance`` since 2.6."""
    set_stance = getattr(torch.compiler, "set_stance", None)
    with set_stance("force_eager") if set_stance is not None else contextlib.nullcontext():
        yield


# -- the graph trees of torch.compile --------------------------------------------------------------

GRAPH_TREES = "torch._inductor.cudagraph_trees"
"""The module that has them, imported by torch.compile when it is needed."""

RECORDS_A_GRAPH = "CUDAGraphNode", "_record"
"""Its class of one graph of a tree, and the method that captures it: ``_record(model, inputs)``."""
