"""The fork bugs that specimens may stand for: public issues and pull requests.

Each is listed under the mechanism that it was found to have when its thread was read.
"""

from __future__ import annotations

_BY_MECHANISM = {
    "after-fork-use": (
        "pytorch/pytorch#184643",
        "pytorch/pytorch#55643",
        "tensorflow/tensorflow#57877",
        "PaddlePaddle/Paddle#78171",
        "lupinemachines/lupine#544",
    ),
    "class-body": (
        "vllm-project/vllm (v0.7-v0.11, spec decode)",
        "LMCache/LMCache#1710",
    ),
    "config-resolution-in-parent": (
        "vllm-project/vllm#56239",
        "sgl-project/sglang#34709",
    ),
    "dataloader-worker": (
        "pytorch/pytorch#40403",
        "pytorch/pytorch#77159",
        "pytorch/pytorch#13775",
        "pytorch/pytorch#17359",
        "meta-pytorch/data#966",
    ),
    "decorator": (
        "deepspeedai/DeepSpeed#7028",
        "triton-lang/triton#6150",
        "NVIDIA/TransformerEngine#872",
        "Dao-AILab/quack#85",
    ),
    "default-argument": ("openai/CLIP#196",),
    "device-probe-in-parent": (
        "vllm-project/vllm#5473",
        "pytorch/pytorch#190708",
        "pytorch/pytorch#83973",
    ),
    "device-use-in-parent": (
        "vllm-project/vllm#9469",
        "glotzerlab/signac-flow#115",
        "GeeeekExplorer/nano-vllm#22",
    ),
    "driver-cuInit": (
        "vllm-project/vllm#32611",
        "vllm-project/vllm#8893",
        "pytorch/pytorch#171804",
        "pytorch/pytorch#13883",
        "numba/numba#6149",
        "mars-project/mars#479",
        "inducer/pycuda#137",
        "ofiwg/libfabric#6272",
        "NVIDIA/cutlass#3083",
    ),
    "global-tensor-or-constant": ("flashinfer-ai/flashinfer#3293",),
    "guard-false-positive": ("Lightning-AI/pytorch-lightning#21389",),
    "guard-gap": (
        "vllm-project/vllm#50638",
        "pytorch/pytorch#17357",
        "NVIDIA/DALI#3671",
    ),
    "import-time-call": (
        "vllm-project/vllm#54869",
        "flashinfer-ai/flashinfer#4889",
        "vllm-project/vllm#21312",
        "sgl-project/sglang#462",
        "sgl-project/sglang#40201",
        "deepspeedai/DeepSpeed#7918",
        "deepspeedai/DeepSpeed#7252",
        "triton-lang/triton#1570",
        "facebookresearch/xformers#1030",
        "kornia/kornia#1951",
        "pytorch/ao#3676",
        "huggingface/transformers#41409",
        "huggingface/accelerate#1807",
        "huggingface/accelerate#1831",
        "pytorch/pytorch#81758",
        "Lightning-AI/pytorch-lightning#14043",
        "pytorch/pytorch#122085",
        "pytorch/pytorch#159641",
    ),
    "init-reexport": (
        "vllm-project/vllm#43791",
        "vllm-project/vllm#50639",
        "NVIDIA/Fuser#4953",
    ),
    "is_available": (
        "vllm-project/vllm#15951",
        "mlc-ai/xgrammar#231",
        "deepspeedai/DeepSpeed#6810",
        "rusty1s/pytorch_scatter#209",
        "SYSTRAN/faster-whisper#983",
    ),
    "over-wide-import": ("vllm-project/vllm#14910",),
    "test-collection-import": (
        "vllm-project/vllm#44258",
        "vllm-project/vllm#47446",
        "pytorch/pytorch#99536",
        "numba/numba#5061",
        "NVIDIA/cudf#1245",
    ),
    "test-fixture-or-conftest": (
        "vllm-project/vllm#3557",
        "deepspeedai/DeepSpeed#7937",
        "deepspeedai/DeepSpeed#7810",
        "deepspeedai/DeepSpeed#1987",
        "EleutherAI/gpt-neox#1132",
        "meta-pytorch/monarch#1528",
    ),
    "triton-driver-probe": ("vllm-project/vllm#46996",),
}

FORK_BUGS: dict[str, str] = {
    bug: mechanism for mechanism, bugs in _BY_MECHANISM.items() for bug in bugs
}
"""Mechanism of each bug, by ``owner/repository#number``."""

MECHANISMS = frozenset(_BY_MECHANISM)
"""Every way of initializing CUDA too early, or of using it too late, that these bugs show."""
