"""Owns the list of specimens.

It does not know how they are run: ``tests/plugin/test_specimens.py`` does.
"""

from __future__ import annotations

from tests.specimens.specimen import Specimen

_VLLM_SPEC_DECODE = "vllm-project/vllm (v0.7-v0.11, spec decode)"
_GPU = "phantom:sm_90"
_TORCH = ("torch",)

CATALOG: tuple[Specimen, ...] = (
    Specimen(
        "accelerator_probe", "device-probe-in-parent", ("pytorch/pytorch#190708",),
        "fork", "trainer/launch.py",
        "torch.get_device_module() where device_count() would do.",
        device=_GPU, needs=_TORCH,
    ),
    Specimen(
        "backend_probe", "triton-driver-probe", ("vllm-project/vllm#46996",),
        "fork", "engine/triton_utils/importing.py",
        "Counting a compiler's active backends calls cuInit.",
    ),
    Specimen(
        "class_annotation", "import-time-call", ("sgl-project/sglang#40201",),
        "fork", "srt/transfer.py",
        "The annotation of a field is evaluated in the class body (Python below 3.14).",
        python_below=(3, 14),
    ),
    Specimen(
        "class_body", "class-body", (_VLLM_SPEC_DECODE,),
        "poison", "engine/v1/attention/backends/flash_attn.py",
        "The forked engine core imports a class whose body asks for the capability.",
        device=_GPU, needs=_TORCH, seed=True,
    ),
    Specimen(
        "class_body_at_import", "class-body", (_VLLM_SPEC_DECODE,),
        "touch", "engine/v1/attention/backends/flash_attn.py",
        "The same class body, met by importing the module; the fix asks NVML.",
        device=_GPU, needs=_TORCH, seed=True,
    ),
    Specimen(
        "collection_import", "test-collection-import",
        ("vllm-project/vllm#44258", "vllm-project/vllm#47446"),
        "fork", "engine/kernels/linear.py",
        "A helper of the tests reaches a probe when any test is collected.",
    ),
    Specimen(
        "compile_worker_pool", "after-fork-use", ("pytorch/pytorch#184643",),
        "poison", "inductor/device.py",
        "The manager reads device properties, its forked workers ask the driver again.",
    ),
    Specimen(
        "config_post_init", "config-resolution-in-parent", ("sgl-project/sglang#34709",),
        "fork", "srt/server_args.py",
        "A dataclass's __post_init__ probes; spawn is forced in the forked child, too late.",
        needs=_TORCH,
    ),
    Specimen(
        "config_resolution", "config-resolution-in-parent", ("vllm-project/vllm#56239",),
        "fork", "engine/config.py",
        "Resolving a configuration asks the device before the workers exist.",
        device=_GPU, needs=_TORCH,
    ),
    Specimen(
        "conftest_touch", "test-fixture-or-conftest",
        ("vllm-project/vllm#3557", "EleutherAI/gpt-neox#1132"),
        "fork", "conftest.py",
        "A conftest counts GPUs; every test that forks fails.",
    ),
    Specimen(
        "dataloader_collate", "dataloader-worker",
        ("pytorch/pytorch#17359", "meta-pytorch/data#966"),
        "poison", "speech/device.py",
        "The first epoch passes, the second dies: the parent used CUDA in between.",
        device=_GPU, needs=_TORCH,
    ),
    Specimen(
        "decorator", "decorator", ("triton-lang/triton#6150", "deepspeedai/DeepSpeed#7028"),
        "fork", "kernels/rms_norm.py",
        "The autotune decorator resolves the driver when the kernel is defined.",
    ),
    Specimen(
        "default_argument", "default-argument", ("openai/CLIP#196",),
        "fork", "clip/clip.py",
        "A default argument asks is_available() at import.",
        needs=_TORCH,
    ),
    Specimen(
        "device_use_in_parent", "device-use-in-parent", ("GeeeekExplorer/nano-vllm#22",),
        "fork", "nanovllm/model_runner.py",
        "Rank 0 takes its device in the parent of the other ranks.",
    ),
    Specimen(
        "driver_cuinit", "driver-cuInit", ("pytorch/pytorch#13883", "mars-project/mars#479"),
        "poison", "gpustats/query.py",
        "Something that is not torch calls cuInit in the parent.",
    ),
    Specimen(
        "env_conditional", "driver-cuInit", ("pytorch/pytorch#171804",),
        "fork", "profiler/trace.py",
        "An environment variable decides whether the import initializes.",
    ),
    Specimen(
        "forking_server", "is_available", ("SYSTRAN/faster-whisper#983",),
        "poison", "whisper/model.py",
        "torch asks in the parent, a library that is not torch fails in the child.",
        needs=_TORCH,
    ),
    Specimen(
        "forkpty", "device-use-in-parent", ("glotzerlab/signac-flow#115",),
        "fork", "console/status.py",
        "A variation: the fork is hidden in pty.fork().",
    ),
    Specimen(
        "guard_asks_torch", "driver-cuInit", ("vllm-project/vllm#32611",),
        "fork", "engine/banner.py",
        "The guard that forces spawn asks torch alone; the fix asks the driver.",
        device=_GPU, seed=True,
    ),
    Specimen(
        "guard_too_early", "init-reexport", ("vllm-project/vllm#50639",),
        "fork", "engine/ops/common/fused_norm_rope.py",
        "The guard has chosen fork before a later import initializes.",
    ),
    Specimen(
        "import_probes_ops", "import-time-call",
        ("deepspeedai/DeepSpeed#7918", "deepspeedai/DeepSpeed#7252"),
        "fork", "deepspeed/git_version_info.py",
        "The import asks of every operator whether it could be built.",
    ),
    Specimen(
        "imported_fork", "driver-cuInit", ("mars-project/mars#479",),
        "fork", "arraylib/__init__.py",
        "An array library in the parent; the pool says `from os import fork`.",
    ),
    Specimen(
        "init_reexport", "init-reexport", ("vllm-project/vllm#43791",),
        "fork", "cutlass/cute/__init__.py",
        "An __init__ re-exports kernels whose modules initialize the driver.",
        seed=True,
    ),
    Specimen(
        "is_available_at_import", "is_available",
        ("mlc-ai/xgrammar#231", "rusty1s/pytorch_scatter#209"),
        "fork", "xgrammar/matcher.py",
        "torch.cuda.is_available() in a module body.",
        needs=_TORCH,
    ),
    Specimen(
        "kv_sharing", "class-body", ("LMCache/LMCache#1710",),
        "poison", "engine/attention/flash.py",
        "Two engine processes share a cache that only fork can pass on.",
        device=_GPU, needs=_TORCH, seed=True,
    ),
    Specimen(
        "launcher_refuses", "guard-false-positive", ("Lightning-AI/pytorch-lightning#21389",),
        "touch", "metrics/throughput.py",
        "A launcher refuses to fork and cannot say who initialized CUDA.",
        device=_GPU,
    ),
    Specimen(
        "module_constant", "global-tensor-or-constant", ("flashinfer-ai/flashinfer#3293",),
        "fork", "flashinfer/gdn_decode.py",
        "NUM_SMS is read from the device at import.",
        device=_GPU, needs=_TORCH,
    ),
    Specimen(
        "optional_dependency", "import-time-call",
        ("flashinfer-ai/flashinfer#4889", "sgl-project/sglang#462"),
        "fork", "flashinfer/gemm.py",
        "The import probes only where an optional package is installed.",
    ),
    Specimen(
        "order_dependent", "test-collection-import", ("NVIDIA/cudf#1245",),
        "fork", "frames/native.py",
        "A test fails because of a file that runs before it.",
    ),
    Specimen(
        "over_wide_import", "over-wide-import", ("vllm-project/vllm#14910",),
        "fork", "flash_attn_ext/__init__.py",
        "A small helper is imported from a module that imports the kernels.",
    ),
    Specimen(
        "parametrize", "test-collection-import", ("numba/numba#5061",),
        "fork", "test_tuner.py",
        "The arguments of parametrize ask for devices at collection.",
    ),
    Specimen(
        "pin_memory", "device-use-in-parent", (),
        "fork", "prefetch/staging.py",
        "Measured, not reported: pinning initializes and is_initialized() stays False.",
        device=_GPU, needs=_TORCH,
    ),
    Specimen(
        "poisoned_grandchild", "guard-gap", ("vllm-project/vllm#50638",),
        "poison", "engine/core.py",
        "In a poisoned child is_initialized() is False, so the guard lets it fork again.",
        device=_GPU, needs=_TORCH, seed=True,
    ),
    Specimen(
        "pool_initializer", "driver-cuInit", ("inducer/pycuda#137",),
        "poison", "simulation/device.py",
        "The parent counts devices, the initializer of a Pool makes a context.",
    ),
    Specimen(
        "runtime_version_check", "driver-cuInit", ("numba/numba#6149",),
        "fork", "nbcuda/api.py",
        "The import compares the versions of runtime and driver.",
    ),
    Specimen(
        "sanity_check", "driver-cuInit", ("ofiwg/libfabric#6272",),
        "fork", "fabric/info.py",
        "A library calls cuInit to see whether it would work.",
    ),
    Specimen(
        "server_script", "device-use-in-parent", ("vllm-project/vllm#9469",),
        "fork", "scripts/post.py",
        "A script started by exec is clean, touches, and forks: named inside the script.",
        seed=True,
    ),
    Specimen(
        "session_fixture", "test-fixture-or-conftest", ("deepspeedai/DeepSpeed#7937",),
        "fork", "conftest.py",
        "A session fixture asks for the device that no test uses.",
    ),
    Specimen(
        "silent_spawn", "import-time-call", ("vllm-project/vllm#54869",),
        "touch", "flashinfer_comm/__init__.py",
        "The guard turns fork into spawn, and the test fails for another reason.",
        device=_GPU, status=2,
    ),
    Specimen(
        "skip_condition", "test-collection-import", ("pytorch/pytorch#99536",),
        "fork", "common_cuda.py",
        "Skip conditions are computed at import; the fix makes them lazy values.",
    ),
    Specimen(
        "third_party_import", "import-time-call",
        ("huggingface/accelerate#1807", "huggingface/accelerate#1831"),
        "fork", "bitsandbytes/cextension.py",
        "A library that is imported and not used initializes CUDA.",
    ),
    Specimen(
        "thread_touch", "device-use-in-parent", ("vllm-project/vllm#9469",),
        "fork", "engine/monitor.py",
        "A variation: a thread touches, the main thread forks.",
    ),
)
