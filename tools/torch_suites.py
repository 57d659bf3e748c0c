"""The suites of libraries that use torch and CUDA, run on a machine without a GPU.

Their releases are installed without what they declare, which would bring a CUDA build of torch and
its parts: what their tests import beside them is listed here, and torch is held. Where the tests of
a suite lie beside the package in the archive, ``sources`` names it, so that the installed release
is tested.
"""

from __future__ import annotations

from tools.suite_archives import PYTEST, Suite

TORCH = "torch==2.13.0"
HELD = (TORCH, f"pytest=={PYTEST}", "numpy<2.5", "setuptools<81")
"""What pip may not replace, whatever a library declares."""
REQUIREMENTS = (
    TORCH,
    f"pytest=={PYTEST}",
    "pytest-asyncio",
    "pytest-reportlog",
    "pytest-timeout",
    "pytest-xdist",
    # Of the libraries.
    "aiofiles",
    "aiohttp",
    "apache-tvm-ffi",
    "awscrt",
    "blake3",
    "cachetools",
    "cryptography",
    "cuda-python<14,>=13",
    "einops",
    "fastapi",
    "grpcio",
    "httptools",
    "huggingface_hub",
    "loguru",
    "msgspec",
    "ninja",
    "numpy",
    "nvidia-ml-py",
    "nvtx",
    "openai",
    "opentelemetry-api<=1.40.0",
    "opentelemetry-exporter-otlp",
    "opentelemetry-exporter-prometheus<=0.61b0",
    "opentelemetry-sdk",
    "packaging",
    "prometheus_client<=0.24.1",
    "protobuf<7",
    "psutil",
    "py",
    "py-cpuinfo",
    "pydantic",
    "pyyaml",
    "pyzmq",
    "redis",
    "requests",
    "safetensors",
    "scipy",
    "setuptools",
    "sortedcontainers",
    "tabulate",
    "tqdm",
    "transformers",
    "triton",
    "uvicorn",
    # Of their tests.
    "expecttest",
    "fire",
    "httpx",
    "parameterized",
    "responses",
)
_ENVIRONMENT = (
    "HF_HUB_OFFLINE=1",
    "TRANSFORMERS_OFFLINE=1",
    "OMP_NUM_THREADS=1",
    "PYTHONDONTWRITEBYTECODE=1",
)
_ARGUMENTS = ("--timeout=60", "--continue-on-collection-errors")


def _suite(
    name: str,
    version: str,
    *paths: str,
    sources: tuple[str, ...] = ("src",),
    tag: str = "",
) -> Suite:
    """Return a suite with the limits and variables of all of them."""
    return Suite(name, version, paths, _ARGUMENTS, _ENVIRONMENT, sources, tag)


SUITES = (
    _suite("accelerate", "1.15.0", "tests"),
    _suite("compressed-tensors", "0.20.0", "tests"),
    _suite("flashinfer-python", "0.7.2.post1", "tests"),
    # The rest needs a GPU, or minutes for a file.
    _suite("liger-kernel", "0.8.5", "test/backends"),
    # A part: what has to do with processes and devices.
    _suite(
        "lmcache",
        "0.5.6",
        "tests/v1/multiprocess",
        "tests/v1/platform",
        "tests/v1/lmcache_native",
        "tests/v1/shm_allocator",
        sources=("lmcache",),
    ),
    _suite("safetensors", "0.8.0", "bindings/python/tests"),
    # git archive --prefix=torchao-0.18.0/ v0.18.0 test pyproject.toml
    _suite(
        "torchao",
        "0.18.0",
        "test/core",
        "test/dtypes",
        "test/float8",
        "test/hqq",
        "test/kernel",
        "test/quantization/quantize_",
        "test/sparsity",
        tag="v0.18.0 of its repository",
    ),
    _suite("xformers", "0.0.35", "tests", sources=("xformers",)),
    _suite("xgrammar", "0.2.8", "tests/python", sources=("python",)),
)
