"""The dispatch mode of a capture: each operator is recorded instead of run.

Its results are memory of the graph that holds poison until a replay. What has no place in a graph,
because it needs a value on the host, is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from pytest_cudafork.capture.interface.backend import describe
from pytest_cudafork.capture.interface.hidden_frames import of_refusals
from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.operators.collectives import finished, group_in
from pytest_cudafork.capture.operators.refusal_words import INDEX_PUT_TODO, Refusals
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import Traits, tensors_in
from pytest_cudafork.capture.software.memory import Memory
from pytest_cudafork.capture.software.mode import (
    Recorder,
    RecordingMode,
    note_uses,
)
from pytest_cudafork.capture.software.past_operators import UnderWay
from pytest_cudafork.capture.software.places import noted_on_host
from pytest_cudafork.capture.software.pool import Pool, poison
from pytest_cudafork.capture.software.shapes import (
    NotDenseError,
    Shapes,
    Spec,
    Specs,
    map_tensors,
    signature_of,
    unlike_dense,
)
from pytest_cudafork.capture.software.tape import Group, Place, Tape, Wrapped, step_of
from pytest_cudafork.compat.torch_graphs.modes import has_fake_tensors, is_traced
from pytest_cudafork.compat.torch_graphs.tensors import identity_of

__tracebackhide__ = of_refusals


_COPIED = {"aten::copy_": (1, 1), "aten::where": (1, 2)}
"""Arguments, from which to which, that go to the device where the first one lies there."""


class CaptureMode(RecordingMode):
    """Records and does not run."""

    def __init__(self, recorder: Recorder, shapes: Shapes, pool: Pool) -> None:
        super().__init__(recorder)
        self.tape = Tape()
        self.under_way = UnderWay()
        self._shapes = shapes
        self._pool = pool
        self.refusals = Refusals()
        self.open_capture: Any = None  # what ends it, while it is in force
        self.generators = [torch.default_generator]  # those that a replay advances
        self.others_may_work = False  # other threads, as a capture "thread_local" of CUDA lets them
        self._by_kind: dict[Kind, Callable[..., Any]] = {
            Kind.EMPTY: self._empty,
            Kind.LIFT: self._lift,
            Kind.SCALAR: self._scalar,
            Kind.SYNC: self._sync,
            Kind.RESIZE: self._resize,
        }

    def opaque(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Refuse."""
        self.refusals.refuse(
            f"the higher-order operator {op} at {{where}} is not supported by the software graph",
            "its parts are functions, and torch has no Python code for it that runs on plain "
            "tensors and could be recorded operator by operator",
            "call the function that it wraps, leave this call outside the capture, or test it "
            "with the backend 'cuda'",
            check="not-judged",
        )

    def handle(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        """Record an operator."""
        if self.host_works:
            return self._on_host_alone(op, traits, args, kwargs)
        if has_fake_tensors():
            return op(*args, **kwargs)
        if is_traced():
            self._refuse_tracing(traits)
        kind = traits.kind
        if kind is Kind.VIEW:
            return op(*args, **kwargs)
        special = self._by_kind.get(kind)
        if special is not None:
            return special(op, traits, args, kwargs)
        found: list[Tensor] = []
        key = self._key(traits, args, kwargs, found)
        for each in found:
            if not each.is_cpu:
                return self._elsewhere(op, traits, args, kwargs, each.device)
            self._check_dense(traits, each)
        if traits.has_device:
            device = kwargs.get("device")
            if device is not None and device.type != "cpu":
                return self._elsewhere(op, traits, args, kwargs, device)
        if traits.on_values is not None and traits.on_values(args, kwargs, self._on_host_already):
            self._refuse_values(traits)
        if traits.has_generator:
            self._check_generator(traits, kwargs)
        if traits.name in _COPIED:
            self._check_copy(traits.name, args)
        host = self._host(found)
        if host and len(host) == len(found):
            return self._on_host(op, args, kwargs)
        return self._work(op, traits, args, kwargs, key, found)

    # ---- work

    def _work(
        self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], key: Any, found: Any
    ) -> Any:
        specs = self._specs(op, traits, args, kwargs, key)
        for index, spec in specs.resized:
            self._grow(traits.written[index].of(args, kwargs), spec, traits)
        recorder = self.recorder
        node = recorder.node("op", traits.name)
        note_uses(recorder, traits, args, kwargs, found, node)
        for written in traits.written:
            for each in tensors_in(written.of(args, kwargs)):
                self._leave_host(each)
        places = [self._place(each) for each in args]
        named = {name: self._place(each) for name, each in kwargs.items()} if kwargs else {}
        results, fresh = self._results(traits, specs.results, args, kwargs, node)
        self.tape.add(step_of(finished(op, traits.name), places, named, fresh), node)
        return results

    def _results(
        self, traits: Traits, specs: Any, args: Any, kwargs: dict[str, Any], node: int
    ) -> tuple[Any, Any]:
        """What the caller gets, and the places that a replay fills, in the operator's structure."""
        if not traits.returns:
            return None, None
        one = len(traits.returns) == 1
        results: list[Any] = []
        fresh: list[Any] = []
        for source, spec in zip(traits.returns, (specs,) if one else specs, strict=True):
            if source is not None:
                results.append(traits.written[source].of(args, kwargs))
                fresh.append(None)
            else:
                made = _build(spec, lambda spec: self._make(spec, node))
                results.append(made)
                fresh.append(self._place(made))
        return (results[0], fresh[0]) if one else (tuple(results), fresh)

    def _make(self, spec: Spec, node: int) -> Tensor:
        """Memory of the graph for a result; it holds poison until a replay."""
        if spec.nbytes == 0:
            made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="cpu")
            memory = self.recorder.memories.own(made)
            memory.keep = made.untyped_storage()
        else:
            block, made = self._pool.lend(spec.nbytes, spec.dtype)
            poison(made)
            made.set_(made.untyped_storage(), 0, spec.shape, spec.stride)
            memory = self.recorder.memories.own(made, block)
        if node >= 0:
            self.recorder.use(memory, node, reads=False, writes=True)
        else:
            memory.filled = spec.nbytes == 0
            memory.where = line_at_work()
        return made

    def places(self, tree: Any) -> Any:
        """The places of the tensors in the arguments of a kernel, descriptors included."""
        if isinstance(tree, dict):
            return {name: self.places(each) for name, each in tree.items()}
        if isinstance(tree, (list, tuple)):
            return [self.places(each) for each in tree]
        base = getattr(tree, "base", None)
        if isinstance(base, Tensor) and not isinstance(tree, Tensor):
            return Wrapped(tree, self._place(base))
        return self._place(tree)

    def _place(self, tree: Any) -> Any:
        if isinstance(tree, Tensor):
            memory = self.recorder.memories.of(tree)
            if memory.host:
                return tree.clone()  # by value, as a number is passed to a kernel
            if memory.value is None and tree.dim() == 0 and not memory.owned:
                memory.value = tree.clone()
            return self.tape.place(tree, memory)
        if isinstance(tree, (list, tuple)):
            return [self._place(each) for each in tree]
        group = group_in(tree)
        return tree if group is None else Group(group)

    # ---- what is not work

    def _empty(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        found: list[Tensor] = []
        key = self._key(traits, args, kwargs, found)
        device = kwargs.get("device") or (found[0].device if found else torch.device("cpu"))
        if device.type != "cpu":
            return op(*args, **kwargs)
        for each in found:
            self._check_dense(traits, each)
        spec = self._specs(op, traits, args, kwargs, key).results
        if not isinstance(spec, Spec):
            return op(*args, **kwargs)
        made = self._make(spec, -1)
        memory = self.recorder.memories.of(made)
        if memory.block is not None:
            self.tape.add_poison(made, memory)
        return made

    def _lift(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        made = op(*args, **kwargs)
        if not made.dim():
            return self.note_host(made)
        if not noted_on_host(made):  # torch.LongTensor([1, 2]) always lies there
            self.refusals.host_data("a list or an array as a tensor")
        return made

    def _scalar(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        if kwargs.get("device") is not None:  # it is filled there
            return self._work(op, traits, args, kwargs, signature_of(args, kwargs, []), [])
        return self.note_host(op(*args, **kwargs))

    def _sync(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        found = tensors_in(args)
        if len(self._host(found)) == len(found) or found[0].is_meta:
            return op(*args, **kwargs)
        short = traits.name.split("::", 1)[1]
        if short == "equal":
            if self.under_way.checks:
                return True
            if args[0].shape != args[1].shape or not args[0].numel():
                return args[0].shape == args[1].shape
        call = "item() or bool(), int(), float()" if short == "_local_scalar_dense" else short
        return self.refusals.sync(f"{call} of {describe(found[0])}")

    def _resize(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        tensor = args[0]
        size = args[1].shape if isinstance(args[1], Tensor) else args[1]
        needed = (torch.Size(size).numel() + tensor.storage_offset()) * tensor.element_size()
        if tensor.is_cpu and needed > tensor.untyped_storage().nbytes():
            self._refuse_growth(tensor, traits)
        return op(*args, **kwargs)

    def _grow(self, tensor: Tensor, spec: Spec, traits: Traits) -> None:
        """Give an empty ``out=`` its memory, as the operator would."""
        if tensor.numel():
            self._refuse_growth(tensor, traits)
        made = self._make(spec, -1)
        tensor.set_(made.untyped_storage(), 0, spec.shape, spec.stride)

    def _refuse_growth(self, tensor: Tensor, traits: Traits) -> None:
        self.refusals.refuse(
            f"{traits.name} at {{where}} moves {describe(tensor)} to other memory",
            "graphs captured before, and this one, hold the old address",
            "allocate it at its largest size before the capture and use a slice of it",
            check="capture-failed",
        )

    def _refuse_tracing(self, traits: Traits) -> NoReturn:
        self.refusals.refuse(
            f"{traits.name} at {{where}} is traced by torch.fx within the capture",
            "the software graph would take the operator away from the trace",
            "trace (make_fx, torch.func.linearize) before the capture, or test it with the "
            "backend 'cuda'",
            check="not-judged",
        )

    def _key(self, traits: Traits, args: Any, kwargs: dict[str, Any], found: list[Tensor]) -> Any:
        """What the results of a call depend on; the tensors are added to ``found``."""
        try:
            return signature_of(args, kwargs, found)
        except RuntimeError:  # a nested tensor has no shape
            self._check_dense(traits, found[-1])
            raise

    def _specs(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], key: Any) -> Specs:
        try:
            return self._shapes(op, traits, args, kwargs, key)
        except NotDenseError as error:
            self._refuse_layout(traits, str(error))

    def _check_dense(self, traits: Traits, tensor: Tensor) -> None:
        if unlike := unlike_dense(tensor):
            self._refuse_layout(traits, unlike)

    def _refuse_layout(self, traits: Traits, unlike: str) -> NoReturn:
        self.refusals.refuse(
            f"{traits.name} at {{where}} works with a tensor of {unlike}",
            "the software graph records dense tensors; operators on others mostly wait for their "
            "shapes on a GPU",
            "use a dense tensor within the graph",
            check="not-judged",
        )

    def _elsewhere(
        self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any], device: Any
    ) -> Any:
        if device.type == "meta":
            return op(*args, **kwargs)
        return self.refusals.refuse(
            f"{traits.name} at {{where}} works on {device}",
            "the software graph records work on CPU tensors",
            "make all tensors of this test on the CPU, or use the backend 'cuda'",
            check="not-judged",
        )

    def _refuse_values(self, traits: Traits) -> None:
        short = traits.name.split("::", 1)[1]
        if traits.waits:
            self.refusals.sync(f"{traits.name}, whose kernel looks at values,")
        if short.startswith(("index_put", "_index_put")):
            self.refusals.shape(f"x[mask] = value ({traits.name})", INDEX_PUT_TODO)
        self.refusals.shape(traits.name)

    def _check_generator(self, traits: Traits, kwargs: dict[str, Any]) -> None:
        generator = kwargs.get("generator")
        known = map(identity_of, self.generators)
        if generator is not None and identity_of(generator) not in known:
            self.refusals.refuse(
                f"{traits.name} at {{where}} draws from a generator of its own",
                "a CUDA graph knows the default generator only; another one has to be registered "
                "with CUDAGraph.register_generator_state before the capture",
                "register it, use the default generator within the graph, or draw before the "
                "replay into a static input",
                check="capture-failed",
            )

    # ---- numbers that the host knows

    def _check_copy(self, name: str, args: Any) -> None:
        """Refuse a copy from the host into memory of the device."""
        at, beside = _COPIED[name]
        if self._host(list(args[at : beside + 1])) and not self._host([args[0]]):
            self.refusals.host_data(f"{name}, which copies a number of the host,")

    def _host(self, found: list[Tensor]) -> list[Tensor]:
        memories = self.recorder.memories
        return [e for e in found if (m := memories.get(e)) is not None and m.host]

    def _on_host_already(self, tensor: Tensor) -> bool:
        memory = self.recorder.memories.get(tensor)
        if memory is None:
            return self.under_way.assigns_number and tensor.dim() == 0
        return memory.host

    def note_host(self, tensor: Tensor) -> Tensor:
        """Note that the host knows what a tensor holds."""
        memory = self.recorder.memories.of(tensor)
        memory.host = True
        memory.keep = tensor.untyped_storage()
        return tensor

    def _on_host(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Arithmetic with host numbers happens now, as on a machine with a GPU."""
        result = op(*args, **kwargs)
        map_tensors(self.note_host, result)
        return result

    def _on_host_alone(self, op: Any, traits: Traits, args: Any, kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded in op.tags:
            self.refusals.refuse(
                f"{traits.name} at {{where}} draws numbers on the host within a capture",
                "the software graph has one generator for host and device",
                "draw before the capture, or test it with the backend 'cuda'",
                check="not-judged",
            )
        return op(*args, **kwargs)

    def _leave_host(self, tensor: Tensor) -> None:
        """A host number is written by recorded work: from here on it lies on the device."""
        memory = self.recorder.memories.get(tensor)
        if memory is None or not memory.host:
            return
        memory.host = False
        value = tensor.clone()
        place: Place = self.tape.place(tensor, memory)
        self.tape.add(lambda: place.tensor.copy_(value), -1)

    def settle(self) -> None:
        """At the end: single numbers that are gone already were numbers of the host."""
        for place in list(self.tape.outside()):
            memory: Memory = place.memory
            if memory.value is not None and memory.storage() is None:
                memory.keep = memory.value.untyped_storage()
                self.tape.settle(place)


def _build(specs: Any, make: Callable[[Spec], Tensor]) -> Any:
    if isinstance(specs, Spec):
        return make(specs)
    if isinstance(specs, list):
        return [_build(each, make) for each in specs]
    return specs
