"""Functions of torch that are watched or replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.compat import require

torch: Any = pytest.importorskip("torch")

from pytest_cudafork.compat.torch_graphs import functions  # noqa: E402

USED = {
    "_C._group_tensors_by_device_and_dtype": "clipping gradients that stand for a GPU's",
    "_C._profiler._RecordFunctionFast": "the lines of a warm-up's kernels",
}


@pytest.mark.parametrize("name", USED)
def test_torch_still_has_the_name(name: str) -> None:
    require("torch", torch, name, USED[name])


def test_an_optimizer_still_refuses_a_capture() -> None:
    names = [name for name in functions.OPTIMIZER_CHECKS if hasattr(torch.optim.Optimizer, name)]
    assert names, (
        f"torch {torch.__version__} has none of {functions.OPTIMIZER_CHECKS} in its optimizers: "
        "the software graph has to refuse capturable=False in another place"
    )


def test_marks_of_nvtx_go_by_the_name_that_is_replaced() -> None:
    assert hasattr(torch.cuda.nvtx, functions.MARKS), (
        f"torch {torch.__version__} has no torch.cuda.nvtx.{functions.MARKS}: on the software "
        "graph marks raise again"
    )
    if not torch.backends.cuda.is_built():
        assert functions.raises_for_marks(torch.cuda.nvtx)
    assert not functions.raises_for_marks(SimpleNamespace(_nvtx=functions.NoMarks()))


@pytest.mark.parametrize("name", functions.TRACERS)
def test_torch_still_traces_by_these_functions(name: str) -> None:
    assert callable(getattr(torch.jit, name, None)), (
        f"torch {torch.__version__} has no torch.jit.{name}: a look at captures steps aside while "
        "it traces, and needs the name that takes its place, if there is one"
    )
