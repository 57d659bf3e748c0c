"""``run --captures``: a script that captures graphs, told with the line, and its repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.specimens.graph_scripts.catalog import CATALOG as SCRIPTS
from tests.specimens.graph_scripts.catalog import HOME
from tests.specimens.plain_graphs.catalog import CATALOG, form
from tests.support.programs import watched
from tests.support.sessions import needs_torch
from tests.support.torch import is_cuda_build_of_torch

pytestmark = [
    needs_torch,
    pytest.mark.slow,
    pytest.mark.fresh_interpreter("programs of their own are what this is about"),
]
SEED = next(program for program in CATALOG if program.name == "speculator_prefill")


@pytest.mark.parametrize("which", ["buggy", "fixed"])
def test_a_script_that_leaves_the_planner_out_of_its_graph_is_told_the_line(
    which: str, tmp_path: Path
) -> None:
    form(which).copy_to(tmp_path)
    (tmp_path / "main.py").write_text(f"from test_{SEED.name} import serve\nprint(len(serve()))\n")
    done = watched(
        *("--captures", "--device=phantom:sm_90", "--fail", "--report=told.json", "--json"),
        "main.py",
        cwd=tmp_path,
    )
    assert done.stdout == "3\n"
    assert done.stderr == ""
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    errors = told["captures"]["errors"]
    if which == "fixed":
        assert (done.returncode, told["good"], errors) == (0, True, [])
        return
    assert (done.returncode, told["good"]) == (1, False)
    assert told["captures"]["judged"] > 0
    named = {where.rpartition("/")[2] for error in errors for _, where in error["lines"]}
    assert named & set(SEED.named_lines)


def test_training_on_stand_ins_is_told_with_its_schedule_and_no_touch_but_of_autograd(
    tmp_path: Path,
) -> None:
    script = HOME / "training_schedule.py"
    done = watched(
        *("--captures", "--device=phantom:sm_90", "--report=told.json", "--json"),
        script,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert told["good"]
    # The engine of a CUDA build counts the GPUs at the first backward(), whatever the tensors are.
    backward = [("cuInit", "training_schedule.py:18")] if is_cuda_build_of_torch() else []
    touches = [(one["call"], one["culprit"].rpartition("/")[2]) for one in told["touches"]]
    assert touches == backward
    (found,) = told["captures"]["suspicions"]
    assert found["kind"] == "frozen-host-number"
    (named,) = next(one for one in SCRIPTS if one.name == "training_schedule").named_lines
    assert [where.rpartition("/")[2] for _, where in found["lines"]] == [named]


def test_a_look_that_cannot_be_set_up_lets_the_program_run_and_fails_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys\n"
        "sys.modules['pytest_cudafork.capture.in_tests.listeners'] = None  # is not installed\n"
        "import torch\n"
        "print(torch.ones(1).item())\n"
    )
    done = watched("--captures", "--fail", "--report=told.json", "--json", "main.py", cwd=tmp_path)
    assert done.stdout == "1.0\n"
    assert done.stderr == ""
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert (done.returncode, told["good"]) == (1, False)
    [words] = [each for each in told["not_observable"] if "captured" in each]
    assert words.startswith("captured graphs were not looked at: ModuleNotFoundError: import of")


def test_a_part_that_cannot_be_set_up_lets_the_program_run_and_fails_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import sys, types, torch\n"
        "class Kept(type):\n"
        "    def __setattr__(cls, name, value): raise TypeError(name)\n"
        "class Node(metaclass=Kept):\n"
        "    def _record(self, model, inputs): ...\n"
        "class Loader:\n"
        "    def create_module(self, spec): return None\n"
        "    def exec_module(self, module): module.CUDAGraphNode = Node\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch._inductor.cudagraph_trees':\n"
        "            from importlib.machinery import ModuleSpec\n"
        "            return ModuleSpec(name, Loader())\n"
        "sys.meta_path.insert(1, Finder())  # behind ours\n"
        "import torch._inductor.cudagraph_trees\n"
        "print(torch.ones(1).item())\n"
    )
    done = watched("--captures", "--fail", "--report=told.json", "--json", "main.py", cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("1.0\n", "")
    told = json.loads((tmp_path / "told.json").read_text(encoding="utf-8"))
    assert (done.returncode, told["good"]) == (1, False)
    [words] = [each for each in told["not_observable"] if "captured" in each]
    assert words == (
        "captured graphs were not looked at: setting that up for torch._inductor.cudagraph_trees "
        "failed: TypeError: _record"
    )
