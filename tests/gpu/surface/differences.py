"""Where a sweep on a GPU and one on a CPU build differ, and why that is right."""

from __future__ import annotations

import re
from typing import NamedTuple

_COMPILE_FX = "torch 2.11 asks while torch._inductor.compile_fx is imported; torch 2.13 does not"
_TOOLKIT = "torch.utils.cpp_extension asks at import where it finds a CUDA toolkit; here is none"
_ARCH = "torch 2.11 asks is_available() first; torch 2.13 does not"
_ALLOCATOR = "torch 2.13 asks whether the allocator was used, and does no more if not"
_EVENT = "a build without CUDA has no such event: making it fails, before it is recorded"
_CUFFT = "there is no device 0 here, so torch refuses the index before it asks"


_TYPE = "a build without CUDA refuses the type before it looks at the arguments, which are wrong"


class Difference(NamedTuple):
    """Calls that touch on one side alone; ``calls`` is a pattern for the whole call."""

    calls: str
    why: str
    on_gpu: bool = True


DIFFERENCES = (
    Difference(r"torch\.compile\(.*|module\.compile\(\)|import torch\._inductor.*", _COMPILE_FX),
    Difference(r".*torch\.utils\.(cpp_extension|benchmark|jit\.log_extract).*", _TOOLKIT),
    Difference(r"torch\.cuda\.(get_arch_list|get_gencode_flags)\(\)", _ARCH),
    Difference(r"torch\.accelerator\.(memory\.)?reset_\w+_memory_stats\(.*", _ALLOCATOR),
    Difference(r"torch\.(cuda\.)?Event\(.*\)\.record\(\)", _EVENT),
    Difference(r"torch\.backends\.cuda\.cufft_plan_cache\[0\].*", _CUFFT),
    Difference(r"torch\.cuda\.(sparse\.)?\w+Tensor\(.+\)", _TYPE, on_gpu=False),
)


def why(call: str, on_gpu: bool) -> str:
    """Return why a call touches on the GPU alone, or here alone; "" if that is not known."""
    known = (one for one in DIFFERENCES if one.on_gpu is on_gpu)
    return next((one.why for one in known if re.fullmatch(one.calls, call)), "")
