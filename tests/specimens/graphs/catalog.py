"""The list of graph specimens; the code of each is the module of its name."""

from __future__ import annotations

from tests.specimens.graphs.specimen import GraphSpecimen

_ONLY_CUDA = ("cuda",)
_NO_STREAMS = "what CUDA makes of the default stream within a capture is not judged without a GPU"

CATALOG = (
    GraphSpecimen(
        "attribute_rebound", "host-value-frozen", ("pytorch/pytorch#114844",),
        ("moved-input",),
        "The forward binds an attribute; a replay does nothing to Python objects.",
        path="mean",
    ),
    GraphSpecimen(
        "autotune_in_capture", "jit-or-gc-in-capture", ("triton-lang/triton#10596",),
        ("host-sync",),
        "A size that no warm-up has seen is tuned within the capture.",
    ),
    GraphSpecimen(
        "bool_mask", "host-sync-in-capture", ("pytorch/pytorch#78549",),
        ("host-sync",),
        "A boolean mask needs to know on the host how many are set.",
    ),
    GraphSpecimen(
        "buffer_overrun", "buffer-undersized",
        ("vllm-project/vllm#41016", "sgl-project/sglang#29695"),
        ("replay-differs",),
        "Padded rows lie behind the end of a buffer, in the next one.",
    ),
    GraphSpecimen(
        "cached_planner", "lazy-init-skipped", ("vllm-project/vllm#42444",),
        ("missing-kernels",),
        "A variation: the plan is kept by functools.lru_cache, where no walk can see it.",
    ),
    GraphSpecimen(
        "cold_handle", "cold-handle", ("pytorch/pytorch#99397",),
        ("host-sync",),
        "The warm-up leaves out the step that makes a library's handle.",
    ),
    GraphSpecimen(
        "default_stream", "stream-not-captured", ("vllm-project/vllm#43160",),
        ("not-captured",),
        "Work on the default stream while another stream is captured.",
        backends=_ONLY_CUDA, reason=_NO_STREAMS,
    ),
    GraphSpecimen(
        "draft_rollback", "graph-vs-eager-divergence", ("spiritbuun/buun-llama-cpp#116",),
        ("replay-differs",),
        "A variation: whether to restore the state is asked of the host, and frozen.",
    ),
    GraphSpecimen(
        "draft_step_padding", "padding-stale", ("vllm-project/vllm#43682",),
        ("replay-differs",),
        "Padded rows of length 0 advance to 1 and write a key by an old block table.",
    ),
    GraphSpecimen(
        "eager_indptr", "replay-plan-not-refreshed", ("sgl-project/sglang#37975",),
        ("replay-differs",),
        "The preparation of a replay writes the buffer of the eager path.",
    ),
    GraphSpecimen(
        "flashmla_planner", "lazy-init-skipped", ("vllm-project/vllm#42444",),
        ("aliased-state", "lazy-init-skipped", "missing-kernels"),
        "Fresh metadata, but one scheduler object, with __slots__, in all of it.",
        path="state['attn_metadata']['layers.0'].scheduler",
    ),
    GraphSpecimen(
        "fresh_tensor_producer", "pointer-changed",
        ("vllm-project/vllm#53915", "jcelerier/librediffusion#14"),
        ("moved-input",),
        "The producer of an input replaces it instead of filling it.",
        path="hidden",
    ),
    GraphSpecimen(
        "frozen_seed", "rng", ("pytorch/pytorch#84967",),
        ("rng-frozen",),
        "A kernel's seed is a Python number; no generator of torch is involved.",
    ),
    GraphSpecimen(
        "growing_workspace", "pointer-changed",
        ("vllm-project/vllm#46067", "vllm-project/vllm#45487"),
        ("freed-memory",),
        "A later capture makes the shared workspace grow.",
    ),
    GraphSpecimen(
        "host_block_list", "host-value-frozen", ("NVIDIA/TensorRT-LLM#17110",),
        ("replay-differs",),
        "A loop over block numbers on the host writes to the capture's dummy blocks.",
    ),
    GraphSpecimen(
        "host_position", "host-value-frozen", ("pytorch/pytorch#114844",),
        ("replay-differs",),
        "A variation: a Python counter says where a step writes; eager never repeats itself.",
    ),
    GraphSpecimen(
        "item_in_step", "host-sync-in-capture",
        ("vllm-project/vllm-ascend#16736", "microsoft/onnxruntime#15002"),
        ("host-sync",),
        "A number is read from the device in the middle of a step.",
    ),
    GraphSpecimen(
        "kv_lens_mutated", "state-aliasing", ("NVIDIA/TensorRT-LLM#15913",),
        ("wrong-contents",),
        "The warm-up's forward lengthens the lengths that the capture begins with.",
        path="state",
    ),
    GraphSpecimen(
        "kv_writer_padding", "padding-stale", ("vllm-project/vllm#13418",),
        ("replay-differs",),
        "The writer counts the padded key's rows; slot -1 is the end of the cache.",
    ),
    GraphSpecimen(
        "last_token_indices", "padding-stale", ("vllm-project/vllm#39773",),
        ("replay-differs",),
        "Padded rows scatter by the indices of the batch before.",
    ),
    GraphSpecimen(
        "layer_plan", "lazy-init-skipped", ("vllm-project/vllm#42444",),
        ("missing-kernels",),
        "A variation: the flag lies on the layer, the states are spotless.",
    ),
    GraphSpecimen(
        "lora_mapping", "pointer-changed", ("vllm-project/vllm#40038",),
        ("moved-input",),
        "New adapters come as a new tensor, which the graph does not know.",
        path="mapping",
    ),
    GraphSpecimen(
        "max_seqlen_frozen", "host-value-frozen",
        (
            "vllm-project/vllm#19106",
            "facebookresearch/xformers#968",
            "Dao-AILab/flash-attention#1164",
            "pytorch/torchtitan#3893",
        ),
        ("replay-differs",),
        "The longest length is a Python number: tokens behind the capture's are not seen.",
    ),
    GraphSpecimen(
        "memoised_forward", "capture-does-not-execute", ("kekzl/imp#1417",),
        ("no-op-replay",),
        "A variation: the warm-up of the same step leaves nothing to record.",
    ),
    GraphSpecimen(
        "metadata_views", "stale-metadata-at-capture", ("vllm-project/vllm#48261",),
        ("wrong-contents",),
        "Distinct objects, all views of buffers which a later build has overwritten.",
        path="state", seed=True,
    ),
    GraphSpecimen(
        "optional_input", "padding-stale", ("NVIDIA/TensorRT-LLM#18207",),
        ("replay-differs",),
        "A batch without the optional input replays with an earlier one.",
    ),
    GraphSpecimen(
        "padded_size_key", "capture-key-mismatch", ("vllm-project/vllm#46324",),
        ("wrong-contents",),
        "Metadata is remembered by the padded number of tokens alone.",
        path="state.num_reqs",
    ),
    GraphSpecimen(
        "plan_not_refreshed", "replay-plan-not-refreshed",
        ("alibaba/rtp-llm#378", "alibaba/rtp-llm#1084"),
        ("replay-differs",),
        "Before a replay the page table is refreshed, the plan is not.",
    ),
    GraphSpecimen(
        "planner_outside_graph", "lazy-init-skipped", ("vllm-project/vllm#36611",),
        ("replay-differs",),
        "The plan is made with the metadata, outside the graph.",
    ),
    GraphSpecimen(
        "positions_not_reset", "padding-stale",
        ("sgl-project/sglang#10892", "sgl-project/sglang#25529"),
        ("replay-differs",),
        "Padded rows write where the previous, larger batch had its keys.",
    ),
    GraphSpecimen(
        "shared_workspace_owner", "pool-lifetime", ("vllm-project/vllm-omni#6587",),
        ("freed-memory",),
        "Retiring one bucket frees the workspace of its whole generation.",
    ),
    GraphSpecimen(
        "side_stream_unjoined", "stream-not-captured", ("vllm-project/vllm#57785",),
        ("capture-failed",),
        "Work on a side stream is never joined.",
    ),
    GraphSpecimen(
        "speculator_prefill", "state-aliasing", ("vllm-project/vllm#44253",),
        ("aliased-state", "lazy-init-skipped", "missing-kernels"),
        "The speculator takes the target's one captured state for both passes.",
        path="state.attn_metadata['mtp.0']", seed=True,
    ),
    GraphSpecimen(
        "staging_recycled", "pool-lifetime", ("microsoft/onnxruntime#32121",),
        ("replay-differs",),
        "A host buffer that a graph copies from is given to a run of another shape.",
    ),
    GraphSpecimen(
        "topk_buffer", "pool-lifetime", ("NVIDIA/TensorRT-LLM#16290",),
        ("uninitialized-read",),
        "Fresh memory at every forward, partly filled, wholly read.",
    ),
    GraphSpecimen(
        "ubatch_key", "capture-key-mismatch", ("vllm-project/vllm#43145",),
        ("wrong-contents",),
        "Four microbatches are filed under the tokens of two.",
        path="state.num_tokens",
    ),
    GraphSpecimen(
        "warmup_divergence", "warmup-capture-divergence", ("tracel-ai/burn#5772",),
        ("missing-kernels",),
        "Warm-up runs the in-place variant, capture launches the other one cold.",
    ),
    GraphSpecimen(
        "workspace_lru", "pointer-changed", ("NVIDIA/TensorRT-LLM#16176",),
        ("freed-memory",),
        "A cache evicts a workspace that a live graph points to.",
    ),
    GraphSpecimen(
        "workspace_resize", "pointer-changed", ("flashinfer-ai/flashinfer#4399",),
        ("freed-memory",),
        "The workspace's tensor stays, its memory moves.",
    ),
)
