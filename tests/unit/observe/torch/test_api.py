"""The witness in torch's Python API where there is no GPU: it records, and changes nothing."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_cudafork.compat import torch_internals, unpatched
from pytest_cudafork.observe.story.touch import culprit_of, first_import_body, frames_from
from pytest_cudafork.observe.torch import api, rows
from pytest_cudafork.observe.torch.api import TorchWitness
from pytest_cudafork.settings import environment
from tests.support.torch import require_cpu_build_of_torch, run

require_cpu_build_of_torch()

# Measured on an H200, or seen to call cuInit in a CUDA build of torch over the phantom driver; with
# the entry that the witness names on a CPU build.
TOUCHES = {
    "torch.cuda.is_available()": "torch.cuda.is_available",
    "torch.cuda.get_device_capability()": "torch.cuda._lazy_init",
    "torch.cuda.get_device_properties(0)": "torch.cuda._lazy_init",
    "torch.cuda.current_device()": "torch.cuda._lazy_init",
    "torch.cuda.is_bf16_supported()": "torch.cuda.is_available",
    "torch.cuda.mem_get_info()": "torch.cuda._lazy_init",
    "torch.cuda.init()": "torch.cuda._lazy_init",
    "torch.cuda.synchronize()": "torch.cuda._lazy_init",
    "torch.cuda.get_rng_state()": "torch.cuda._lazy_init",
    "torch.cuda.set_device(0)": "torch.cuda.set_device",
    "torch.cuda.device(0).__enter__()": "torch.cuda._exchange_device",
    "torch.cuda.Stream()": "torch.cuda.Stream.__new__",
    "torch.cuda.is_current_stream_capturing()": "torch.cuda.graphs.is_current_stream_capturing",
    "torch.cuda.CUDAGraph()": "torch.cuda.graphs.CUDAGraph.__new__",
    "torch.ones(1, device='cuda')": "torch.cuda._lazy_init",
    "torch.ones(1).cuda()": "torch.cuda._lazy_init",
    "torch.ones(1).to('cuda')": "torch.cuda._lazy_init",
    "torch.nn.Linear(1, 1).cuda()": "torch.cuda._lazy_init",
    "torch.ones(1).pin_memory()": "torch.Tensor.pin_memory",
    "torch.ones(1).pin_memory('cuda')": "torch.Tensor.pin_memory",
    "torch.random.fork_rng().__enter__()": "torch.random.fork_rng",
    "torch.autocast('cuda') and 0": "torch.cuda.is_available",
    "torch.backends.cudnn.version()": "torch.backends.cudnn.version",
    "torch.get_device_module()": "torch._C._get_accelerator",
    "torch.accelerator.is_available()": "torch.accelerator.is_available",
    "torch.accelerator.current_device_index()": "torch._C._accelerator_getDeviceIndex",
    "torch.accelerator.set_device_index(0)": "torch._C._accelerator_setDeviceIndex",
    "torch.accelerator.set_device_index('cuda:0')": "torch.accelerator.set_device_index",
    "torch.accelerator.synchronize('cuda')": "torch.accelerator._utils._get_device_index",
    "torch.accelerator.current_accelerator(True)": "torch.accelerator.current_accelerator",
    "torch.accelerator.current_accelerator(check_available=True)": (
        "torch.accelerator.current_accelerator"
    ),
    "torch.optim.Adam(torch.nn.Linear(1, 1).parameters()).step()": (
        "torch.accelerator.current_accelerator"
    ),
    # The engine counts the devices in the first backward pass of a process.
    "torch.ones(1, requires_grad=True).sum().backward()": (
        "torch.autograd.graph._engine_run_backward"
    ),
    "torch.profiler.supported_activities()": "torch.profiler.profiler.supported_activities",
    "exec('with torch.autograd.profiler.profile(): pass')": (
        "torch.autograd.profiler.profile._prepare_trace"
    ),
    "torch.__config__.show()": "torch._C._show_config",
    "torch.cuda.get_rng_state_all()": "torch.cuda.random.get_rng_state_all",
    "torch.cuda.tunable.get_results()": "torch.cuda.tunable.get_results",
    "torch.cuda.CudaError(0)": "torch.cuda.CudaError.__init__",
}
HARMLESS = (
    "torch.cuda.device_count()",
    "torch.manual_seed(1) and 0",
    "torch.device('cuda')",
    "torch.cuda.manual_seed(1)",
    "torch.cuda.manual_seed_all(1)",
    "torch.cuda.is_initialized()",
    "torch.cuda.nccl.version()",
    "torch.cuda.memory_allocated()",
    "torch.cuda.empty_cache()",
    "torch.cuda.get_arch_list()",
    "torch.cuda.Event()",
    "torch.cuda.set_device(-1)",
    "torch.cuda.set_device('cpu')",
    "torch.cuda.set_device(False)",
    "torch.cuda.tunable.is_enabled()",
    "torch.accelerator.set_stream(1)",
    "torch.accelerator.synchronize('cuda:0')",
    "torch.accelerator.synchronize('cpu')",
    "torch.accelerator.synchronize('no device')",
    "torch.ones(1).sum().backward()",
    "torch.__config__.parallel_info() and 0",
    "torch.cuda.device(-1).__enter__()",
    "torch.random.fork_rng(devices=[]).__enter__()",
    "torch.random.fork_rng(enabled=False).__enter__()",
    "torch.random.fork_rng() and 0",
    "torch.get_device_module('cuda')",
    "torch.accelerator.device_count()",
    "torch.accelerator.current_accelerator()",
    "torch.accelerator.memory_allocated()",
    "torch.backends.cuda.is_built()",
    "torch.ones(1).is_pinned()",
    "torch.ones(1)",
)

COMPARE = """
    import torch

    torch.set_warn_always(True)
    def everything():
        torch.get_device_module.cache_clear()
        return {expression: attempt(expression) for expression in EXPRESSIONS}

    bare = everything()
    witness.install()
    watched = everything()
    torch.get_device_module.cache_clear()
    witness.uninstall()
    silent = len(log)
    after = everything()
    out = {"bare": bare, "watched": watched, "after": after, "late": len(log) - silent}
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    expressions = [*TOUCHES, *HARMLESS]
    script = f"EXPRESSIONS = {expressions!r}\n" + "\n".join(
        line.removeprefix("    ") for line in COMPARE.splitlines()
    )
    return run(script, tmp_path_factory.mktemp("absent"))


@pytest.mark.slow
def test_every_call_that_poisons_a_fork_on_a_gpu_is_recorded_with_its_entry(compared: Any) -> None:
    entries = {
        expression: [touch["entry"] for touch in compared["watched"][expression]["touches"]]
        for expression in TOUCHES
    }
    assert entries == {expression: [entry] for expression, entry in TOUCHES.items()}


@pytest.mark.slow
def test_no_call_that_leaves_a_gpu_alone_is_recorded(compared: Any) -> None:
    false_alarms = {e: t for e in HARMLESS if (t := compared["watched"][e]["touches"])}
    assert false_alarms == {}


@pytest.mark.slow
def test_every_answer_error_and_warning_is_what_it_is_without_the_witness(compared: Any) -> None:
    def seen(run: str) -> dict[str, Any]:
        return {e: (r["answer"], r["warnings"]) for e, r in compared[run].items()}

    assert seen("watched") == seen("bare")
    pinning = "torch.ones(1).pin_memory('cuda')"
    category, _, file, line = compared["watched"][pinning]["warnings"][0]
    # Emitted in C++, at the user's line.
    assert (category, file, line) == ("DeprecationWarning", f"user of {pinning}", 1)


@pytest.mark.slow
def test_after_the_undo_torch_is_as_before_and_nothing_is_recorded(compared: Any) -> None:
    assert compared["late"] == 0
    assert [r["answer"] for r in compared["after"].values()] == [
        r["answer"] for r in compared["bare"].values()
    ]


@pytest.mark.slow
def test_only_the_first_touch_of_a_process_is_not_again(compared: Any) -> None:
    touches = [touch for r in compared["watched"].values() for touch in r["touches"]]
    assert [touch["again"] for touch in touches] == [False] + [True] * (len(touches) - 1)


@pytest.mark.slow
def test_frames_of_the_witness_are_not_on_the_stack(compared: Any) -> None:
    for expression, result in compared["watched"].items():
        for touch in result["touches"]:
            files = [item[0] for item in touch["stack"]]
            assert not [file for file in files if "/pytest_cudafork/" in file]
            assert f"user of {expression}" in files


@pytest.mark.slow
def test_import_of_torch_touches_nothing_and_the_culprit_of_a_class_body_is_its_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "probing.py").write_text(
        "import torch\n\n\nclass Builder:\n    fast = torch.cuda.is_available()\n"
    )
    (tmp_path / "entrance.py").write_text("from probing import Builder\n")
    out = run(
        """
        witness.install()
        import torch
        out.append(list(log))
        import entrance
        out.append(list(log))
        """,
        tmp_path,
    )
    assert out[0] == []
    (touch,) = out[1]
    frames = frames_from(touch["stack"])
    culprit = culprit_of(frames)
    assert culprit is not None
    assert (Path(culprit.filename).name, culprit.lineno, culprit.name) == (
        "probing.py",
        5,
        "Builder",
    )
    assert first_import_body(frames) is not None


@pytest.mark.slow
def test_nvml_based_is_available_is_no_touch(tmp_path: Path) -> None:
    out = run(
        """
        witness.install()
        import torch
        out = [attempt("torch.cuda.is_available()"), attempt("torch.accelerator.is_available()"),
               attempt("torch.cuda.is_bf16_supported()"), witness.touched]
        """,
        tmp_path,
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )
    assert [item["answer"] for item in out[:3]] == ["False"] * 3
    assert [item["touches"] for item in out[:3]] == [[]] * 3
    assert out[3] is False


@pytest.mark.slow
def test_a_repeated_touch_is_recorded_once_and_anew_in_a_forked_child(tmp_path: Path) -> None:
    out = run(
        """
        witness.install()
        import torch

        def probe():
            return torch.cuda.is_available()

        probe_all = [probe() for _ in range(3)]
        def child():
            poison.append(True)
            touched = witness.touched
            probe()
            return [touched, [[t["again"], t["poisoned"]] for t in log[1:]], witness.touched]
        out = [len(log), witness.touched, in_child(child), len(log)]
        """,
        tmp_path,
    )
    assert out == [1, True, [False, [[False, True]], True], 1]


@pytest.mark.slow
def test_functions_keep_identity_signature_source_and_caches(tmp_path: Path) -> None:
    out = run(
        """
        import inspect, pickle
        import torch

        def facts():
            names = ("torch.cuda.is_available", "torch.cuda._lazy_init", "torch.cuda.set_device",
                     "torch.random.fork_rng", "torch.accelerator.is_available")
            found = {}
            for name in names:
                function = eval(name)
                found[name] = [id(function), str(inspect.signature(function)),
                               inspect.getsource(function), function.__module__,
                               hasattr(function, "__wrapped__")]
            return found

        earlier = torch.cuda.is_available
        before = facts()
        witness.install()
        same = facts() == before
        pickled = pickle.loads(pickle.dumps(torch.cuda.is_available)) is earlier
        earlier()
        torch.get_device_module()
        torch.get_device_module()
        info = torch.get_device_module.cache_info()
        torch.get_device_module.cache_clear()
        out = [same, pickled, [t["entry"] for t in log], info.hits, info.misses]
        """,
        tmp_path,
    )
    entries = ["torch.cuda.is_available", "torch._C._get_accelerator"]
    assert out == [True, True, entries, 1, 1]


@pytest.mark.slow
def test_dynamo_and_script_treat_watched_functions_as_before(tmp_path: Path) -> None:
    out = run(
        """
        import torch, torch._dynamo
        from torch._subclasses.fake_tensor import FakeTensorMode

        def branches(x):
            return x + 1 if torch.cuda.is_available() else x + 2

        def accelerates(x):
            return x + 1 if torch.accelerator.is_available() else x + 2

        def pins(x):
            return x.pin_memory()

        class Handled(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if func is torch.Tensor.pin_memory:
                    return "handled"
                return super().__torch_function__(func, types, args, kwargs or {})

        def fake():
            with FakeTensorMode():
                return torch.ones(1).pin_memory()

        def all_of_them():
            torch._dynamo.reset()
            warnings.simplefilter("ignore")
            results = []
            for work in (
                lambda: torch.compile(branches, fullgraph=True, backend="eager")(torch.zeros(1)),
                lambda: torch.compile(accelerates, fullgraph=True, backend="eager")(torch.zeros(1)),
                lambda: torch.compile(pins, fullgraph=True, backend="eager")(torch.zeros(1)),
                lambda: torch.jit.script(branches),
                lambda: torch.ones(1).as_subclass(Handled).pin_memory(),
            ):
                try:
                    results.append(repr(work()))
                except Exception as error:
                    results.append([type(error).__name__, str(error)[:60]])
            return results

        bare = all_of_them()
        witness.install()
        watched = all_of_them()
        before = len(log)
        try:
            fake()
        except (AssertionError, RuntimeError):
            pass
        out = [bare, watched, [touch["entry"] for touch in log[before:]]]
        """,
        tmp_path,
    )
    assert out[0] == out[1]
    assert out[0][0] == out[0][1] == "tensor([2.])"
    assert out[0][4] == "'handled'"
    assert "torch.Tensor.pin_memory" not in out[2]  # a fake tensor pins nothing


# In this process: a module that stands in for torch, with one function in each table.
STAND_IN = "cudafork_stand_in"
SOURCE = """
def probe():
    return "probed"

def started():
    return "started"

def counted():
    return "counted"
"""


class Recorded:
    """Notes what a witness records, and counts for the witness below it."""

    def __init__(self) -> None:
        self.touches: list[tuple[str, bool]] = []
        self.stacks: list[list[Any]] = []
        self.count = 0

    def record(self, entry: str, *, again: bool, stack: list[Any]) -> None:
        """Note a touch."""
        self.touches.append((entry, again))
        self.stacks.append(stack)

    def touch_count(self) -> int:
        """Count what the driver's witness saw."""
        return self.count


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with rows for its functions, on a build without CUDA."""
    made: Any = ModuleType(STAND_IN)
    exec(compile(SOURCE, "/src/stand_in.py", "exec"), vars(made))
    monkeypatch.setitem(sys.modules, STAND_IN, made)
    monkeypatch.setattr(api, "MODULES", (STAND_IN,))

    def row(name: str, behavior: Any = rows.always) -> tuple[rows.Row, ...]:
        return (rows.Row(STAND_IN, STAND_IN, name, behavior),)

    missing = row("dropped by this release")
    monkeypatch.setattr(rows, "ABSENT_CPU", (*row("probe"), *missing))
    monkeypatch.setattr(rows, "ABSENT", row("counted"))
    monkeypatch.setattr(rows, "CUDA_BUILD", row("started", rows.unless_recorded))
    monkeypatch.setattr(rows, "initialized", lambda: False)
    monkeypatch.setattr(torch_internals, "is_cuda_build", lambda: False)
    return made


@pytest.fixture
def recorded() -> Recorded:
    """What is recorded."""
    return Recorded()


def names(recorded: Recorded) -> list[str]:
    """Return the last parts of the entries that were recorded."""
    return [entry.rpartition(".")[2] for entry, _ in recorded.touches]


@pytest.mark.parametrize(
    ("face", "cuda_build", "expected"),
    [
        ("absent", False, ["probe", "counted"]),
        ("absent", True, ["started", "counted"]),
        ("real", True, ["started"]),
        ("real", False, []),
    ],
)
def test_face_and_build_decide_what_is_hooked(
    face: str,
    cuda_build: bool,
    expected: list[str],
    module: Any,
    recorded: Recorded,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_internals, "is_cuda_build", lambda: cuda_build)
    undo = TorchWitness(face, recorded.record, recorded).install()
    answers = [module.probe(), module.started(), module.counted()]
    undo()
    undo()
    assert answers == ["probed", "started", "counted"]
    assert names(recorded) == expected
    module.probe()
    assert names(recorded) == expected


def test_the_stack_begins_at_the_caller(module: Any, recorded: Recorded) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(TorchWitness("absent", recorded.record).install())
        module.probe()
    filename, _, name, _ = recorded.stacks[0][0]
    assert (filename, name.rpartition(".")[2]) == (
        __file__,
        "test_the_stack_begins_at_the_caller",
    )


def test_a_touch_is_recorded_once_for_each_stack_and_test(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = TorchWitness("absent", recorded.record)
    undo = witness.install()
    assert not witness.touched
    for test in ("test_a", "test_a", "test_b"):
        monkeypatch.setenv(environment.TEST, test)
        module.probe()
    undo()
    assert [again for _, again in recorded.touches] == [False, True]
    assert witness.touched


def test_who_sees_a_touch_of_another_thread_can_wait_for_its_record(module: Any) -> None:
    told: list[tuple[bool, bool]] = []

    def look() -> None:
        told.append((witness.touched, witness.is_writing()))

    def record(entry: str, **about: Any) -> None:
        look()
        other = threading.Thread(target=look)
        other.start()
        other.join()
        raise ValueError("it cannot be written")

    witness = TorchWitness("absent", record)
    undo = witness.install()
    with pytest.raises(ValueError, match="cannot be written"):
        module.probe()
    look()
    undo()
    own, others, after = told
    assert own == (True, False), "it would wait for itself"
    assert others == (True, True)
    assert after == (True, False)


def test_what_the_driver_saw_before_makes_a_touch_one_more(module: Any, recorded: Recorded) -> None:
    recorded.count = 1
    undo = TorchWitness("absent", recorded.record, recorded).install()
    module.probe()
    undo()
    assert [again for _, again in recorded.touches] == [True]


def test_a_call_that_the_driver_saw_is_not_recorded_again(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_internals, "is_cuda_build", lambda: True)
    witness = TorchWitness("real", recorded.record, recorded)
    undo = witness.install()
    with witness.unseen("entry", None):
        recorded.count += 1
    assert recorded.touches == []
    with witness.unseen("entry", None):
        pass
    undo()
    assert recorded.touches == [("entry", True)]


def test_a_child_begins_anew(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = TorchWitness("absent", recorded.record)
    undo = witness.install()
    module.probe()
    with monkeypatch.context() as patch:
        patch.setattr(unpatched.os, "getpid", lambda: -1)
        assert not witness.touched
    undo()


def test_another_face_is_shown_for_a_while(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(
        "pytest_cudafork.observe.torch.present.arm",
        lambda witness, undo: shown.append(witness.face),
    )
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    witness = TorchWitness("absent", recorded.record)
    undo = witness.install()
    back = witness.become("sm_90")
    module.probe()
    assert (witness.face, shown, recorded.touches) == ("sm_90", ["sm_90"], [])
    back()
    module.probe()
    assert (witness.face, names(recorded)) == ("absent", ["probe"])
    undo()
    with pytest.raises(ValueError, match="is no present face"):
        witness.become("gpu")


def test_a_module_that_is_executed_again_is_hooked_again_and_once(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = TorchWitness("absent", recorded.record)
    undo = witness.install()
    old = module.probe
    exec(compile(SOURCE, "/src/stand_in.py", "exec"), vars(module))
    assert module.probe is not old
    for _ in range(2):  # what was not executed again keeps its one hook
        witness._arm(module, witness._undo)
    old()
    module.probe()
    assert names(recorded) == ["probe", "probe"]
    undo()
    module.probe()
    old()
    assert len(recorded.touches) == 2


def test_a_module_that_is_executed_later_than_torch_does_is_hooked_then(
    module: Any, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "later_stand_in.py").write_text("def late():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    late = rows.Row(STAND_IN, "later_stand_in", "late", rows.always)
    monkeypatch.setattr(rows, "ABSENT_CPU", (late,))
    undo = TorchWitness("absent", recorded.record).install()
    importlib.import_module("later_stand_in").late()
    monkeypatch.delitem(sys.modules, "later_stand_in")
    assert names(recorded) == ["late"]
    undo()
