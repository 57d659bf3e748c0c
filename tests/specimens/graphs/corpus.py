"""The graph bugs that specimens may stand for: public issues and pull requests.

Each is listed under the mechanism that it was found to have when its thread was read.
"""

from __future__ import annotations

_BY_MECHANISM = {
    "buffer-undersized": (
        "vllm-project/vllm#41016",
        "sgl-project/sglang#29695",
    ),
    "capture-does-not-execute": (
        "kekzl/imp#1417",
    ),
    "capture-key-mismatch": (
        "vllm-project/vllm#46324",
        "vllm-project/vllm#32818",
        "vllm-project/vllm#43145",
    ),
    "cold-handle": (
        "pytorch/pytorch#99397",
    ),
    "graph-vs-eager-divergence": (
        "vllm-project/vllm#40831",
        "vllm-project/vllm#55238",
        "spiritbuun/buun-llama-cpp#116",
    ),
    "host-sync-in-capture": (
        "microsoft/onnxruntime#15002",
        "pytorch/pytorch#78549",
        "triton-lang/triton#685",
        "vllm-project/vllm-ascend#16736",
    ),
    "host-value-frozen": (
        "vllm-project/vllm#19106",
        "vllm-project/vllm#51119",
        "NVIDIA/TensorRT-LLM#17110",
        "pytorch/pytorch#114844",
        "facebookresearch/xformers#968",
        "Dao-AILab/flash-attention#1164",
        "pytorch/torchtitan#3893",
    ),
    "jit-or-gc-in-capture": (
        "sgl-project/sglang#35427",
        "triton-lang/triton#10596",
    ),
    "lazy-init-skipped": (
        "vllm-project/vllm#42444",
        "vllm-project/vllm#36611",
    ),
    "padding-stale": (
        "vllm-project/vllm#43682",
        "vllm-project/vllm#39773",
        "vllm-project/vllm#13418",
        "sgl-project/sglang#10892",
        "sgl-project/sglang#25529",
        "sgl-project/sglang#28569",
        "NVIDIA/TensorRT-LLM#18207",
    ),
    "pointer-changed": (
        "vllm-project/vllm#53915",
        "vllm-project/vllm#40038",
        "vllm-project/vllm#46067",
        "vllm-project/vllm#45487",
        "NVIDIA/TensorRT-LLM#16176",
        "flashinfer-ai/flashinfer#4399",
        "jcelerier/librediffusion#14",
    ),
    "pool-lifetime": (
        "vllm-project/vllm#53682",
        "sgl-project/sglang#37606",
        "sgl-project/sglang#22930",
        "NVIDIA/TensorRT-LLM#16290",
        "vllm-project/vllm-omni#6587",
        "microsoft/onnxruntime#32121",
        "vllm-project/vllm-ascend#16794",
    ),
    "replay-plan-not-refreshed": (
        "sgl-project/sglang#37975",
        "alibaba/rtp-llm#378",
        "alibaba/rtp-llm#1084",
    ),
    "rng": (
        "pytorch/pytorch#84967",
        "pytorch/pytorch#172390",
    ),
    "stale-metadata-at-capture": (
        "vllm-project/vllm#48261",
    ),
    "state-aliasing": (
        "vllm-project/vllm#44253",
        "NVIDIA/TensorRT-LLM#15913",
    ),
    "stream-not-captured": (
        "vllm-project/vllm#53818",
        "vllm-project/vllm#57785",
        "vllm-project/vllm#43160",
        "NVIDIA/TensorRT-LLM#12462",
        "pytorch/pytorch#87794",
        "openmm/openmm-torch#122",
    ),
    "warmup-capture-divergence": (
        "tracel-ai/burn#5772",
    ),
}

GRAPH_BUGS = {bug: mechanism for mechanism, bugs in _BY_MECHANISM.items() for bug in bugs}
"""Every bug and its mechanism."""

MECHANISMS = frozenset(_BY_MECHANISM)
