"""The calls whose effect on the driver was measured: which poison a later fork, which do not.

Each case is Python source that is run in a fresh interpreter; ``poisons`` is what was measured on
an H200 with torch 2.11, and what the tests hold the plugin to.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One call; ``needs`` names the modules that must be importable."""

    name: str
    source: str
    poisons: bool
    needs: tuple[str, ...] = ("torch",)
    env: tuple[tuple[str, str], ...] = ()


_AUTOTUNE = """
import triton, triton.language as tl
@triton.autotune(configs=[triton.Config({"B": 64}), triton.Config({"B": 128})], key=["n"])
@triton.jit
def kernel(x, n, B: tl.constexpr):
    pass
"""

_NUMBA = "import numba.cuda\nnumba.cuda.is_available()"

POISONING = (
    Case("torch.cuda.is_available", "import torch\ntorch.cuda.is_available()", True),
    Case("import torch.utils.cpp_extension", "import torch.utils.cpp_extension", True),
    Case("import torch._inductor.compile_fx", "import torch._inductor.compile_fx", True),
    Case("Tensor.pin_memory", "import torch\ntorch.ones(1).pin_memory()", True),
    Case("ctypes cuInit", 'import ctypes\nctypes.CDLL("libcuda.so.1").cuInit(0)', True, ()),
    Case(
        "cuda.bindings cuInit",
        "from cuda.bindings import driver\ndriver.cuInit(0)",
        True,
        ("cuda.bindings.driver",),
    ),
    Case(
        "cupy getDeviceCount",
        "import cupy\ncupy.cuda.runtime.getDeviceCount()",
        True,
        ("cupy",),
    ),
    Case("numba.cuda.is_available", _NUMBA, True, ("numba.cuda",)),
    Case("jax.devices", "import jax\njax.devices()", True, ("jax",)),
    Case(
        "torch.cuda.get_device_capability",
        "import torch\ntorch.cuda.get_device_capability()",
        True,
    ),
    Case("torch.cuda.is_bf16_supported", "import torch\ntorch.cuda.is_bf16_supported()", True),
    Case("torch.ones(device='cuda')", 'import torch\ntorch.ones(1, device="cuda")', True),
    Case(
        "torch.random.fork_rng",
        "import torch\nwith torch.random.fork_rng():\n    pass",
        True,
    ),
    Case(
        "triton get_current_target",
        "import triton.runtime\ntriton.runtime.driver.active.get_current_target()",
        True,
        ("torch", "triton"),
    ),
)

HARMLESS = (
    Case("nothing at all", "pass", False, ()),
    Case("import torch", "import torch", False),
    Case("import triton", "import triton", False, ("triton",)),
    Case("import transformers", "import transformers", False, ("transformers",)),
    Case("import cupy", "import cupy", False, ("cupy",)),
    Case("import jax", "import jax", False, ("jax",)),
    Case(
        "import cuda.bindings.driver",
        "import cuda.bindings.driver",
        False,
        ("cuda.bindings.driver",),
    ),
    Case("import cuda.core", "import cuda.core", False, ("cuda.core",)),
    Case("map libcuda.so.1", 'import ctypes\nctypes.CDLL("libcuda.so.1")', False, ()),
    Case(
        "cuDriverGetVersion",
        "import ctypes\nn = ctypes.c_int()\n"
        'ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(n))',
        False,
        (),
    ),
    Case("torch.cuda.device_count", "import torch\ntorch.cuda.device_count()", False),
    Case(
        "NVML through pynvml",
        "import pynvml\npynvml.nvmlInit()\npynvml.nvmlDeviceGetCount()",
        False,
        ("pynvml",),
    ),
    Case(
        "is_available by NVML",
        "import torch\ntorch.cuda.is_available()",
        False,
        env=(("PYTORCH_NVML_BASED_CUDA_CHECK", "1"),),
    ),
    Case("torch.manual_seed", "import torch\ntorch.manual_seed(0)", False),
    Case("torch.cuda.manual_seed_all", "import torch\ntorch.cuda.manual_seed_all(0)", False),
    Case("torch.device('cuda')", 'import torch\ntorch.device("cuda")', False),
    Case("triton.autotune", _AUTOTUNE, False, ("triton",)),
    Case("NCCL version", "import torch\ntorch.cuda.nccl.version()", False),
    Case(
        "is_flash_attention_available",
        "import torch\ntorch.backends.cuda.is_flash_attention_available()",
        False,
    ),
)

CASES = (*POISONING, *HARMLESS)
