"""C functions that a build without CUDA refuses: a refusal is a touch, a wrong argument none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cudafork.observe.driver import native_libs
from pytest_cudafork.observe.torch.c_calls import is_for_want_of_a_gpu
from tests.support.torch import require_cpu_build_of_torch, run

require_cpu_build_of_torch()
pytestmark = pytest.mark.skipif(bool(native_libs.why_not()), reason=native_libs.why_not())

# Measured on an H200: each initializes CUDA there.
TOUCHES = {
    "torch.empty(2, pin_memory=True)": "torch.empty",
    "torch.zeros(2, pin_memory=True)": "torch.zeros",
    "torch.empty(0, pin_memory=True)": "torch.empty",
    "torch.tensor([1.0], pin_memory=True)": "torch.tensor",
    "torch.empty_like(torch.ones(2), pin_memory=True)": "torch.empty_like",
    "torch.ones(2).new_empty(2, pin_memory=True)": "torch.Tensor.new_empty",
    "torch.randperm(3, pin_memory=True)": "torch.randperm",
    "torch.asarray(torch.ones(2), device='cuda')": "torch.asarray",
    "torch.sparse_coo_tensor((2, 2), (2, 1), device='cuda')": "torch.sparse_coo_tensor",
    "torch.ones(1).cuda(0)": "torch.Tensor.cuda",
    "torch.ones(1).type('torch.cuda.FloatTensor')": "torch.Tensor.type",
    "torch.ones(1).type(torch.cuda.FloatTensor)": "torch.Tensor.type",
    "torch.nn.Linear(1, 1).cuda(0)": "torch.Tensor.cuda",
    "torch.cuda.FloatTensor(2)": "torch.cuda.FloatTensor",
    "torch.cuda.LongTensor()": "torch.cuda.LongTensor",
    "torch.cuda.sparse.FloatTensor()": "torch.cuda.sparse.FloatTensor",
    "torch.Generator('cuda')": "torch.Generator",
    "torch.Generator(device='cuda:0')": "torch.Generator",
    "torch.Stream('cuda')": "torch.Stream",
    "torch.Stream(device='cuda:0')": "torch.Stream",
    "torch.Stream()": "torch.Stream",
    "torch.Stream(None)": "torch.Stream",
    "torch.ones(1, device=0)": "torch.ones",
    "torch.ones(1).to(0)": "torch.Tensor.to",
    "torch.ones(1).to(device=0)": "torch.Tensor.to",
    "torch.nn.Linear(1, 1).to(0)": "torch.nn.Module.to",
    "torch.ones(2, device='cuda')": "torch.cuda._lazy_init",
    "torch.ones(2, device='cuda', pin_memory=True)": "torch.cuda._lazy_init",
}
HARMLESS = (
    "torch.empty(2).shape",
    "torch.empty(2, pin_memory=False).shape",
    "torch.empty('two', pin_memory=True)",
    "torch.empty(2, device='meta', pin_memory=True)",
    "torch.empty(2, device='no device')",
    "torch.tensor([[1], [1, 2]])",
    "torch.ones(1).type(torch.float16)",
    "torch.ones(1).type('no type')",
    "torch.ones(1).is_pinned()",
    "torch.cuda.FloatTensor",
    "torch.cuda.FloatTensor.dtype",
    "isinstance(torch.ones(1), torch.cuda.FloatTensor)",
    "torch.Generator()",
    "torch.Generator('no device')",
    "torch.Stream('cpu')",
    "torch.Stream(1, 2, 3, 4)",
    "torch.Event('cuda')",
    "torch.device(0)",
    "torch.device(device=0)",
    "torch.device('no device')",
    "torch.ones(1).to('cpu')",
    "torch.ones(1).to('no device')",
    "torch.nn.Linear(1, 1).to('cpu').weight.device",
)

SCRIPT = """
import torch
from pytest_cudafork.observe.driver import phantom
torch.set_warn_always(True)

def everything():
    return {expression: attempt(expression) for expression in EXPRESSIONS}

def identities():
    from torch.utils._device import _device_constructors
    return [torch.empty in _device_constructors(), id(torch.empty), id(torch.Tensor.cuda),
            id(torch.Stream), id(torch.cuda.FloatTensor), type(torch.empty).__name__]

bare, same = everything(), [identities()]
witness._native = phantom.install("absent").native
witness.install()
watched = everything()
same.append(identities())
witness.uninstall()
before = len(log)
after = everything()
out = {"bare": bare, "watched": watched, "after": after, "late": len(log) - before, "same": same}
"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What expressions give without the witness, with it, and after it."""
    script = f"EXPRESSIONS = {[*TOUCHES, *HARMLESS]!r}\n{SCRIPT}"
    return run(script, tmp_path_factory.mktemp("c_calls"))


@pytest.mark.slow
def test_every_refusal_for_want_of_a_gpu_is_recorded_once(compared: Any) -> None:
    entries = {
        expression: [touch["entry"] for touch in compared["watched"][expression]["touches"]]
        for expression in TOUCHES
    }
    assert entries == {expression: [entry] for expression, entry in TOUCHES.items()}


@pytest.mark.slow
def test_neither_what_works_nor_a_wrong_argument_is_recorded(compared: Any) -> None:
    found = {e: compared["watched"][e]["touches"] for e in HARMLESS}
    assert {e: touches for e, touches in found.items() if touches} == {}


@pytest.mark.slow
def test_answers_errors_warnings_and_identities_stay_as_they_are(compared: Any) -> None:
    for expression in (*TOUCHES, *HARMLESS):
        for when in ("watched", "after"):
            for part in ("answer", "warnings"):
                told = compared["bare"][expression][part], compared[when][expression][part]
                if " object at 0x" not in str(told):
                    assert told[0] == told[1], expression
    assert compared["same"][0] == compared["same"][1]
    assert compared["same"][0][0] is True
    assert compared["late"] == 0


@pytest.mark.slow
def test_the_stack_begins_at_the_users_line(compared: Any) -> None:
    (touch,) = compared["watched"]["torch.empty(2, pin_memory=True)"]["touches"]
    assert touch["stack"][0][0] == "user of torch.empty(2, pin_memory=True)"


@pytest.mark.slow
def test_under_a_present_face_they_are_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    out = run(
        """
        from pytest_cudafork.observe.driver import phantom
        witness._native = phantom.install("sm_90").native
        witness.install()
        import torch
        for expression in ("torch.empty(2, pin_memory=True)", "torch.Generator('cuda')"):
            out.append(attempt(expression))
        """,
        tmp_path,
        face="sm_90",
    )
    for told in out:
        assert "answers questions but does not compute: refused torch." in told["answer"]
    assert [len(told["touches"]) for told in out] == [1, 1]


@pytest.mark.slow
def test_under_a_present_face_a_number_names_a_gpu(tmp_path: Path) -> None:
    out = run(
        """
        from pytest_cudafork.observe.driver import phantom
        witness._native = phantom.install("sm_90").native
        witness.install()
        import torch
        for expression in (
            "torch.device(0)",
            "torch.device(device=1)",
            "torch.nn.ReLU().to(0)",
            "torch.nn.ReLU().to(device=0, dtype=torch.half)",
            "torch.nn.Linear(1, 1).to(0)",
            "torch.ones(1).to(0)",
        ):
            out.append(attempt(expression))
        """,
        tmp_path,
        face="sm_90",
    )
    answers = [told["answer"] for told in out]
    assert "type='cuda', index=0" in answers[0]
    assert "type='cuda', index=1" in answers[1]
    assert answers[2] == answers[3]
    assert "ReLU()" in answers[2]
    for answer in answers[4:]:
        assert "answers questions but does not compute: refused " in answer
    assert [bool(told["touches"]) for told in out] == [False, False, False, False, True, False]


@pytest.mark.slow
def test_who_stands_in_for_gpus_is_asked_before_a_type_is_called(tmp_path: Path) -> None:
    """As in a build with CUDA, whose driver would be initialized by the call."""
    told = run(
        """
        from pytest_cudafork.observe.base.undo import UndoStack
        from pytest_cudafork.observe.driver import phantom
        from pytest_cudafork.observe.torch import c_calls
        from pytest_cudafork.observe.torch.rows import MAKE
        import torch

        def make(entry, args, kwargs):
            return ["made", entry, args, kwargs]

        EXPRESSIONS = (
            "torch.Generator('cuda')", "torch.Generator(device='cuda:1')",
            "torch.Generator(torch.device('cuda'))", "torch.cuda.FloatTensor([1.0])",
            "torch.Generator().device", "torch.Generator('cpu').device",
            "torch.Generator('no device')", "torch.Generator(())", "torch.FloatTensor(2).shape",
        )
        def everything():
            return [attempt(expression)["answer"] for expression in EXPRESSIONS]

        bare = everything()
        undo = UndoStack()
        c_calls.arm_types(phantom.install("sm_90").native, undo)
        unasked = everything()
        setattr(torch.cuda, MAKE, make)
        asked = everything()
        undo()
        out = {"bare": bare, "unasked": unasked, "asked": asked, "after": everything()}
        """,
        tmp_path,
        face="sm_90",
    )
    assert told["bare"] == told["unasked"] == told["after"]
    assert told["asked"][4:] == told["bare"][4:]
    entries = ["torch.Generator"] * 3 + ["torch.cuda.FloatTensor"]
    assert [
        ("made" in answer, entry in answer)
        for answer, entry in zip(told["asked"], entries, strict=False)
    ] == [(True, True)] * 4


@pytest.mark.parametrize(
    ("error", "wants"),
    [
        (RuntimeError("pin_memory=True requires a CUDA or other accelerator backend; no"), True),
        (RuntimeError("Need to provide pin_memory allocator to use pin memory."), True),
        (TypeError("type torch.cuda.FloatTensor not available. Torch not compiled with"), True),
        (AssertionError("Torch not compiled with CUDA enabled"), False),
        (TypeError("empty(): argument 'size' must be tuple of ints"), False),
        (RuntimeError("Expected one of cpu, cuda device type at start of device string"), False),
    ],
)
def test_the_words_of_an_error_tell_why(error: Exception, wants: bool) -> None:
    assert is_for_want_of_a_gpu(error) is wants
