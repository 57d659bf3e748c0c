"""The kinds of errors have names of their own, and something to do next."""

from __future__ import annotations

from pytest_cudafork.explain.kinds import INITIALIZATION, KINDS, NO_CUDA_BUILD, POISONED
from pytest_cudafork.settings.devices import AS_IF_A_GPU, AS_IF_A_GPU_MEANS


def test_each_kind_says_what_to_do() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.title
        assert kind.meaning.endswith(".")
        assert kind.next


def test_commands_that_are_named_are_there() -> None:
    known = ("python -m pytest_cudafork run", "python -m pytest_cudafork imports")
    for kind in KINDS:
        for step in kind.next:
            assert not step.startswith("python -m pytest_cudafork") or step.startswith(known)


def test_nvml_is_not_said_to_initialize_cuda() -> None:
    assert "NVML" not in INITIALIZATION.meaning


def test_a_torch_without_cuda_is_no_matter_of_the_driver() -> None:
    assert "built without CUDA (a CPU wheel)" in NO_CUDA_BUILD.title
    assert "install a build of torch with CUDA" in NO_CUDA_BUILD.next[0]
    assert "or do not ask for CUDA" in NO_CUDA_BUILD.next[0]
    assert not [step for step in NO_CUDA_BUILD.next if "nvidia-smi" in step]


def test_how_to_do_without_a_gpu_is_said_as_everywhere() -> None:
    assert f"pytest {AS_IF_A_GPU}    # {AS_IF_A_GPU_MEANS}" in NO_CUDA_BUILD.next


def test_the_workaround_of_a_poisoned_child_comes_first() -> None:
    assert "get_context('spawn') or 'forkserver'" in POISONED.next[0]
