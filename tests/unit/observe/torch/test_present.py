"""The present face of torch: it answers as if GPUs were there, and refuses to compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_cudafork.observe.story.touch import culprit_of, frames_from
from pytest_cudafork.observe.torch import c_names
from pytest_cudafork.observe.torch.devices import properties_of
from pytest_cudafork.observe.torch.present import parse_face
from tests.support.torch import require_cpu_build_of_torch, run

require_cpu_build_of_torch()

BEFORE_INIT = {
    "torch.cuda.device_count()": "2",
    "torch.cuda.is_initialized()": "False",
    "torch.cuda.manual_seed_all(1)": "None",
    "torch.cuda.nccl.version()": "(2, 27, 3)",
    "torch.cuda.get_arch_list()": "['sm_80', 'sm_90']",
    "torch.cuda.memory_allocated()": "0",
    "torch.cuda.Event() is None": "False",
    "torch.backends.cuda.is_built()": "True",
    "torch.version.cuda": "'12.8'",
    "torch.accelerator.current_accelerator()": "device(type='cuda')",
    "torch.accelerator.device_count()": "2",
    "torch.random.fork_rng(devices=[]).__enter__()": "None",
}
DRIVER_ONLY = {
    "torch.cuda.is_available()": ("True", "torch._C._cuda_getDeviceCount"),
    "torch.accelerator.is_available()": ("True", "torch._C._cuda_getDeviceCount"),
    "torch.cuda.is_current_stream_capturing()": (
        "False",
        "torch._C._cuda_isCurrentStreamCapturing",
    ),
    "torch.get_device_module().__name__": ("'torch.cuda'", "torch._C._get_accelerator"),
}
AFTER_INIT = {
    "torch.cuda.get_device_capability()": "(9, 0)",
    "torch.cuda.is_initialized()": "True",
    "torch.cuda.get_device_name(1)": "'NVIDIA H100 80GB HBM3'",
    "torch.cuda.get_device_properties(0).multi_processor_count": "132",
    "torch.cuda.mem_get_info()": "(85899345920, 85899345920)",
    "torch.cuda.is_bf16_supported()": "True",
    "torch.cuda.current_device()": "0",
    "torch.cuda.set_device(1)": "None",
    "torch.cuda.current_device() ": "1",
    "torch.cuda.set_device(5)": "RuntimeError: CUDA error: invalid device ordinal",
    "torch.cuda.get_device_properties(5)": "AssertionError: Invalid device id",
    "torch.cuda.Stream().device": "device(type='cuda', index=1)",
    "torch.cuda.Stream() == torch.cuda.current_stream()": "False",
    "torch.cuda.current_stream() == torch.cuda.default_stream()": "True",
    "torch.cuda.stream(torch.cuda.Stream()).__enter__()": "None",
    "torch.cuda.current_stream() == torch.cuda.default_stream() ": "False",
    "torch.cuda.synchronize()": "None",
    "torch.cuda.get_rng_state().dtype": "torch.uint8",
    "len(torch.cuda.default_generators)": "2",
    "torch.cuda.can_device_access_peer(0, 1)": "True",
    "torch.accelerator.current_device_index()": "1",
    "torch.accelerator.set_device_index(0)": "None",
    "torch.accelerator.get_memory_info()": "(85899345920, 85899345920)",
    "'allocated' in torch.cuda.memory_summary().lower()": "True",
    "torch.float8_e4m3fn in torch.accelerator.get_device_capability()['supported_dtypes']": "True",
    "torch._C._cuda_getCurrentRawStream(0)": "0",
}
REFUSED = (
    "torch.ones(1, device='cuda')",
    "torch.ones(1).cuda()",
    "torch.ones(1).to('cuda')",
    "torch.nn.Linear(1, 1).cuda()",
    "torch.ones(1).pin_memory()",
    "torch.cuda.CUDAGraph()",
    "torch.cuda.caching_allocator_alloc(4)",
    "torch.cuda._sleep(1)",
    "torch._C._StaticCudaLauncher()",
)
AFTER_UNDO = {
    "torch.cuda.is_available()": "False",
    "torch.cuda.device_count()": "0",
    "torch.cuda.is_initialized()": "False",
    "torch.version.cuda": "None",
    "torch.cuda.default_generators": "()",
    "torch.accelerator.current_accelerator()": "None",
    "torch.get_device_module().__name__": "'torch.cpu'",
    "hasattr(torch._C, '_cuda_init')": "False",
    "torch.cuda.Stream()": "RuntimeError: torch.cuda.Stream requires CUDA support",
    "torch.ones(1, device='cuda')": "AssertionError: Torch not compiled with CUDA enabled",
}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Any:
    steps = [[*BEFORE_INIT], [*DRIVER_ONLY], [*AFTER_INIT], [*REFUSED], [*AFTER_UNDO]]
    return run(
        f"""
        witness.install()
        import torch
        steps = {steps!r}
        for step in steps[:4]:
            out.append({{expression: attempt(expression) for expression in step}})
        witness.uninstall()
        out.append({{expression: attempt(expression) for expression in steps[4]}})
        """,
        tmp_path_factory.mktemp("present"),
        face="sm_90x2",
    )


def answers(step: Any) -> dict[str, str]:
    return {expression: result["answer"] for expression, result in step.items()}


@pytest.mark.slow
def test_questions_before_any_initialization_are_answered_without_a_touch(asked: Any) -> None:
    assert answers(asked[0]) == BEFORE_INIT
    assert {e: r["touches"] for e, r in asked[0].items() if r["touches"]} == {}


@pytest.mark.slow
def test_questions_that_initialize_the_driver_only_are_recorded(asked: Any) -> None:
    found = {e: (r["answer"], *(t["entry"] for t in r["touches"])) for e, r in asked[1].items()}
    assert found == DRIVER_ONLY


@pytest.mark.slow
def test_the_first_question_to_a_device_initializes_and_later_ones_do_not(asked: Any) -> None:
    assert answers(asked[2]) == AFTER_INIT
    first, *later = asked[2].values()
    assert [touch["entry"] for touch in first["touches"]] == ["torch._C._cuda_init"]
    assert [result["touches"] for result in later if result["touches"]] == []


@pytest.mark.slow
def test_computing_is_refused_with_what_to_do_instead(asked: Any) -> None:
    for expression, result in asked[3].items():
        assert result["answer"].startswith("RuntimeError: "), expression
        assert "answers questions but does not compute" in result["answer"], expression
        assert "Run this on a machine with a GPU, or mark" in result["answer"], expression


@pytest.mark.slow
def test_after_the_undo_torch_has_no_gpu_again(asked: Any) -> None:
    assert answers(asked[4]) == AFTER_UNDO
    assert [r["touches"] for r in asked[4].values() if r["touches"]] == []


@pytest.mark.slow
def test_training_on_the_cpu_is_left_alone(tmp_path: Path) -> None:
    """Optimizers ask the accelerator at many places; none of these is about a tensor on a GPU."""
    out = run(
        """
        witness.install()
        import torch

        def step(optimizer):
            layer = torch.nn.Linear(2, 2, bias=False)
            given = getattr(torch.optim, optimizer)(layer.parameters())
            layer(torch.ones(1, 2)).sum().backward()
            given.step(*([lambda: 0.0] if optimizer == "LBFGS" else []))
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)

        def recompute():
            from torch.utils.checkpoint import checkpoint
            layer = torch.nn.Linear(2, 2)
            checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum().backward()

        def train():
            hidden, _ = torch.nn.LSTM(2, 2)(torch.ones(3, 1, 2))
            torch.nn.Dropout()(torch.nn.BatchNorm1d(2)(hidden[:, 0])).sum().backward()
            torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 8)] * 3)
            with torch.autocast("cpu"):
                torch.nn.Linear(2, 2)(torch.ones(1, 2))
            list(torch.utils.data.DataLoader([1, 2]))

        names = [name for name, value in vars(torch.optim).items() if isinstance(value, type)]
        names = [name for name in names if name not in ("Optimizer", "SparseAdam")]
        for name in names:
            out.append([name, attempt(f"step({name!r})")["answer"]])
        out += [[name, attempt(f"{name}()")["answer"]] for name in ("recompute", "train")]
        missing = lambda made, cls: [n for n in dir(cls) if n[0] != "_" and not hasattr(made, n)]
        out += [["Stream", repr(missing(torch.cuda.current_stream(), torch.Stream) or None)]]
        out += [["Event", repr(missing(torch.cuda.Event(), torch.Event) or None)]]
        """,
        tmp_path,
        face="sm_90",
    )
    assert len(out) > 12
    assert [told for told in out if told[1] != "None"] == []


@pytest.mark.slow
def test_a_face_can_be_shown_for_a_while_over_another(tmp_path: Path) -> None:
    out = run(
        """
        witness.install()
        import torch
        ask = "torch.cuda.is_available(), torch.cuda.device_count()"
        names = set(vars(torch._C))
        queued = len(torch.cuda._queued_calls)
        out.append(attempt(ask)["answer"])
        back = witness.become("sm_100x3")
        out.append(attempt(ask)["answer"])
        torch.cuda.manual_seed(3)
        out.append(attempt("torch.cuda.get_device_capability()")["answer"])
        back()
        touch = attempt(ask)
        out += [touch["answer"], [t["entry"] for t in touch["touches"]]]
        out += [set(vars(torch._C)) == names, len(torch.cuda._queued_calls) == queued]
        witness.uninstall()
        before = len(log)
        torch.cuda.is_available()
        out.append(len(log) - before)
        """,
        tmp_path,
    )
    absent, present = "(False, 0)", "(True, 3)"
    entries = ["torch.cuda.is_available"]  # of the absent face again
    assert out == [absent, present, "(10, 0)", absent, entries, True, True, 0]


@pytest.mark.slow
def test_a_forked_child_meets_torchs_own_error_after_the_attempt_is_recorded(
    tmp_path: Path,
) -> None:
    out = run(
        """
        witness.install()
        import torch
        out.append(attempt("torch.cuda._is_in_bad_fork()")["answer"])
        torch.cuda.is_available()

        def child():
            poison.append(True)
            return [attempt(e) for e in (
                "torch.cuda._is_in_bad_fork()", "torch.cuda.is_initialized()",
                "torch.cuda.current_device()", "torch.ones(1, device='cuda')")]
        out.append(in_child(child))
        out.append(in_child(lambda: in_child(child)))
        """,
        tmp_path,
        face="sm_90",
    )
    assert out[0] == "False"
    for flag, initialized, device, tensor in out[1:]:
        assert (flag["answer"], initialized["answer"]) == ("True", "False")
        for attempt in (device, tensor):
            assert attempt["answer"].startswith(
                "RuntimeError: Cannot re-initialize CUDA in forked subprocess"
            )
            assert [t["entry"] for t in attempt["touches"]] == ["torch.cuda._lazy_init"]
            assert attempt["touches"][0]["poisoned"]


@pytest.mark.slow
def test_a_child_poisoned_by_something_else_meets_the_drivers_error(tmp_path: Path) -> None:
    out = run(
        """
        witness.install()
        import torch

        def child():
            poison.append(True)  # a cuInit through ctypes, say: torch's flag does not see it
            return [attempt(e) for e in (
                "torch.cuda._is_in_bad_fork()", "torch.cuda.is_available()",
                "torch.cuda.current_device()", "torch.ones(1).pin_memory()")]
        out = in_child(child)
        """,
        tmp_path,
        face="sm_90",
    )
    flag, available, device, pinned = out
    assert (flag["answer"], available["answer"]) == ("False", "False")
    assert device["answer"].startswith("RuntimeError: CUDA driver initialization failed")
    assert pinned["answer"] == "RuntimeError: CUDA error: initialization error"
    assert all(attempt["touches"] for attempt in out[1:])


VISIBLE = {
    "0": 1,
    "": 0,
    "1,0": 2,
    "0,0": 0,
    "GPU-63756461-666f-726b-0000-000000000001": 1,
    "7": 0,
}


@pytest.mark.slow
def test_visible_devices_are_read_as_the_runtime_reads_them(tmp_path: Path) -> None:
    out = run(
        f"""
        witness.install()
        import torch

        def child():
            found = [torch.cuda.device_count(), len(log), torch.cuda.is_available()]
            os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"  # too late: it was read
            return [*found, attempt("torch.cuda.current_device()")["answer"]]

        for visible in {[*VISIBLE]!r}:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            out.append(in_child(child))
        """,
        tmp_path,
        face="sm_90x2",
    )
    none = "RuntimeError: No CUDA GPUs are available"
    assert out == [[n, 0, n > 0, "0" if n else none] for n in VISIBLE.values()]


@pytest.mark.slow
def test_dynamo_inductor_triton_and_the_extension_builder_import_under_it(tmp_path: Path) -> None:
    """Culprit traps (k) and (l): names a CPU build lacks, and a touch that needs a toolkit."""
    out = run(
        """
        witness.install()
        import torch
        for name in ("torch._dynamo", "torch._inductor", "torch._inductor.compile_fx"):
            before = len(log)
            __import__(name)
            out.append([name, len(log) - before])
        import torch.utils.cpp_extension
        out.append(log[0]["stack"])
        names = set(vars(torch._C))
        out.append(sorted(names))
        branches = lambda x: x + 1 if torch.cuda.is_available() else x + 2
        out.append(repr(torch.compile(branches, fullgraph=True, backend="eager")(torch.zeros(1))))
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            out.append(repr(torch.ones(2, device="cuda").device))
        try:
            import triton
        except ImportError:
            out.append(True)
        else:
            out.append(triton.backends.backends["nvidia"].driver.is_active())
        """,
        tmp_path,
        face="sm_90",
        CUDA_HOME=str(tmp_path),
    )
    *imports, stack, names, compiled, fake_device, triton_active = out
    assert imports[0] == ["torch._dynamo", 0]
    assert [name for name, _ in imports] == [
        "torch._dynamo",
        "torch._inductor",
        "torch._inductor.compile_fx",
    ]
    culprit = culprit_of(frames_from(stack))
    assert culprit is not None
    assert culprit.filename.endswith("torch/utils/cpp_extension.py")
    listed = {*c_names.functions(), *c_names.REFUSED_TYPES, *c_names.CONSTANTS}
    assert listed | {"_cudart", "_cudnn", "_cusparselt", "_nvtx", "_CudaDeviceProperties"} <= {
        *names
    }
    assert compiled == "tensor([1.])"
    assert fake_device == "device(type='cuda', index=0)"
    assert triton_active is True


def test_no_name_stands_in_two_tables() -> None:
    tables = [c_names.REFUSED, c_names.REFUSED_TYPES, {*c_names.CONSTANTS}]
    tables += [{*c_names.FUNCTIONS}, {*c_names.ACCELERATOR}]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))


@given(major=st.integers(1, 99), minor=st.integers(0, 9), count=st.integers(1, 64))
def test_a_face_reads_back_as_what_it_says(major: int, minor: int, count: int) -> None:
    assert parse_face(f"sm_{major}{minor}x{count}") == ((major, minor), count)
    assert parse_face(f"sm_{major}{minor}") == ((major, minor), 1)
    properties = properties_of((major, minor))
    assert (properties.major, properties.minor) == (major, minor)
    assert properties.shared_memory_per_block_optin >= properties.shared_memory_per_block


@pytest.mark.parametrize("face", ["absent", "", "sm_9", "sm_90x0", "sm_90x65", "90", "sm_90x", "x"])
def test_what_is_no_face_is_refused_with_an_example(face: str) -> None:
    with pytest.raises(ValueError, match="as in 'sm_90' or 'sm_90x2'") as caught:
        parse_face(face)
    assert repr(face) in str(caught.value)
