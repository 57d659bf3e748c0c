"""Kernel names: one short name for a kernel, wherever its name was read."""

from __future__ import annotations

import pytest

from tests.support.sessions import needs_torch

pytestmark = needs_torch


# A kernel's name as the compiler writes it, as the profiler shows it, and as we show it.
NAMES = {
    "template": (
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, "
        "std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        "vectorized_elementwise_kernel<4, FillFunctor<float>, array<char*, 1ul>>",
    ),
    "lambda": (
        "_ZN2at6native29vectorized_elementwise_kernelILi4EZZZNS0_15exp_kernel_cudaERNS_18"
        "TensorIteratorBaseEENKUlvE0_clEvENKUlvE_clEvEUlfE_St5arrayIPcLm2EEEEviT0_T1_",
        "void at::native::vectorized_elementwise_kernel<4, at::native::exp_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#1}::operator()() "
        "const::{lambda(float)#1}, std::array<char*, 2ul> >(int, at::native::exp_kernel_cuda("
        "at::TensorIteratorBase&)::{lambda()#2}::operator()() const::{lambda()#1}::operator()() "
        "const::{lambda(float)#1}, std::array<char*, 2ul>)",
        None,
    ),
    "anonymous namespace": (
        "_ZN2at6native49_GLOBAL__N__7f3a0c4f_12_Normalize_cu_8f2f9e6a_12314softmax_kernelIfLi2EEEvPT_iNS_9ScalarMapE",
        None,
        None,
    ),
    "no template": ("_Z9my_kernelPfi", "my_kernel(float*, int)", "my_kernel"),
    "in a namespace": ("_ZN4mine6kernelEPKf", "mine::kernel(float const*)", "kernel"),
    "triton": ("twice_kernel", "twice_kernel", "twice_kernel"),
    "cutlass": (
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize64x64x32_cublas",
    ),
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_kernel_has_one_name_wherever_it_was_read(kind: str) -> None:
    from pytest_cudafork.capture.cuda.names import short_name

    mangled, shown, short = NAMES[kind]
    name = short_name(mangled)
    assert not name.startswith("_Z")
    assert " " not in name.partition("<")[0]
    assert shown is None or short_name(shown) == name
    assert short is None or name == short


def test_long_names_stay_different() -> None:
    from pytest_cudafork.capture.cuda.names import short_name

    first, second = (short_name(f"kernel<{'a' * 300}, {number}>") for number in (1, 2))
    assert first != second
    assert len(first) <= 160


def test_without_a_c_library_the_identifiers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_cudafork.capture.cuda import names

    monkeypatch.setattr(names, "_libstdcxx", lambda: None)
    assert names.demangled("_ZN2at6native3addEPf") == "at::native::add"
    assert names.demangled("_Z9my_kernelPf") == "my_kernel"
    assert names.demangled("_Zx") == "_Zx"
