"""The product is computed in a worker."""

from flashinfer.gemm import gemm
from flashinfer.worker import run_in_worker


def test_gemm_multiplies():
    assert run_in_worker(gemm, [[1, 2]], [[3], [4]]) == [[11]]
