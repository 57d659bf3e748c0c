"""Measures our attention kernels beside those of others and the memory's speed, in one run.

Each result is checked against float32 before its time counts. A library that is not installed is
left out and named. How the engine's kernels are built, ``sample_engine.attention.tuning`` says;
``sweep_attention.py`` looks for something better.

    python benchmarks/bench_attention.py [--only d256 fp8] [--save]
"""

from __future__ import annotations

import functools
import importlib.metadata
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from arguments import needs_gpu, some
from results_file import parser, publish, table
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_cases import (
    KINDS,
    DecodeCase,
    Heads,
    PrefillCase,
    Timer,
    copy_bandwidth,
    relative_error,
)
from model_step import graph_of
from vllm_flash_attention import FlashAttention3OfVllm

from sample_engine.attention import tuning
from sample_engine.attention.capability import capability_of
from sample_engine.attention.flash_libraries import (
    FlashAttention3,
    FlashAttention4,
    FlashLibrary,
)
from sample_engine.attention.interface import AttentionBackend, LayerCache
from sample_engine.attention.kernels.prefill_contiguous import prefill_contiguous
from sample_engine.attention.lazy_plan import LazyPlanBackend
from sample_engine.attention.triton_backend import TritonBackend

_MOST_ERROR = 1e-2  # of a norm, in bfloat16
_PAGED_TARGET = 1.0  # times SDPA-flash
_CONTIGUOUS_TARGET = 1.2
_DECODE_TARGET = 0.85  # of copy bandwidth, at page 16

_BEST_TARGET = 0.95  # of the fastest peer
_EVEN_TARGET = 0.9  # of prompts of one length
_GRAPH_TARGET = 0.8  # of a copy that moves as many bytes; both replayed from a graph

# Lengths that differ, as they do in practice: few of them fill a tile.
_RAGGED_PROMPTS = (5000, 4000, 3000, 2000, 1300, 700, 300, 84)  # together as many as 4 x 4096
_RAGGED_TEXTS = tuple(int(256 * 64 ** (index / 47)) for index in range(48))  # 256 to 16,384

# Sizes, and for heads that are not the usual ones their kind.
_PREFILLS = (
    "4x4096", "1x16384", "ragged", "4x4096 d64", "ragged d64", "4x4096 d256", "ragged d256",
    "4x4096 fp8",
)  # fmt: skip
_DECODES = (
    "64x8192 page 16",
    "64x8192 page 128",
    "1x8192 page 16",
    "64x8192 page 16 d64",
    "64x8192 page 16 d256",
    "64x8192 page 16 fp8",
    "64x8192 page 16 fp8 d256",
    "1x8192 page 16 fp8",
)
# From a graph, as in an engine's step: launches cost the host nothing.
_REPLAYED = ("ragged page 16", "1x32768 page 16", "64x8192 page 16")

_LAYERS = 8  # as a step has: together more than a cache holds

_LIBRARIES = (FlashAttention3, FlashAttention4, FlashAttention3OfVllm)

Work = Callable[[], torch.Tensor]


class Results:
    """Rows of a table, and the figures behind them."""

    def __init__(self) -> None:
        self.timer = Timer()
        self.rows: list[list[str]] = []
        self.figures: dict[str, float] = {}
        self.spread: dict[str, list[float]] = {}
        self.missing: dict[str, str] = {}

    def add(
        self, name: str, work: Work, expected: torch.Tensor, units: float, unit: str, scale: float
    ) -> None:
        """Check and time one; what fails is noted, not raised."""
        try:
            error = relative_error(work(), expected)
            if not error < _MOST_ERROR:
                raise RuntimeError(f"wrong: error {error:.3g}")
            times = self.timer.each(work, rounds=30)
        except Exception as failure:
            self.missing[name] = f"{type(failure).__name__}: {str(failure)[:120]}"
            return
        middle, least, most = statistics.median(times), min(times), max(times)
        speed = units / (middle / 1000) / scale
        self.figures[name] = speed
        self.spread[name] = [round(least, 4), round(most, 4)]
        shown = [f"{speed:.3g} {unit}", f"{error:.1e}", f"{least:.3f}", f"{most:.3f}"]
        self.rows.append([name, f"{middle:.3f}", *shown])


def prefill(results: Results, name: str) -> None:
    """Whole prompts, causal."""
    device = torch.device("cuda")
    label = f"prefill {name}"
    size, _, kind = name.partition(" ")
    lengths = _lengths(size, _RAGGED_PROMPTS)
    heads = KINDS.get(kind, Heads())
    case = PrefillCase(lengths, 16, device, heads)
    expected = case.expected()

    def add(name: str, work: Work) -> None:
        results.add(f"{label} {name}", work, expected, case.flops, "TFLOP/s", 1e12)

    if case.even:
        add("SDPA flash", _sdpa(case, SDPBackend.FLASH_ATTENTION))
        add("SDPA cuDNN", _sdpa(case, SDPBackend.CUDNN_ATTENTION))
    for library in _LIBRARIES:
        add(library.module, _library(library, case))
    if not heads.fp8_cache:
        add("triton contiguous", _contiguous(case))
    add("triton paged 16", _backend(TritonBackend(case.spec), case))
    large = PrefillCase(lengths, 128, device, heads)
    other = large.expected()
    name = f"{label} triton paged 128"
    work = _backend(TritonBackend(large.spec), large)
    results.add(name, work, other, large.flops, "TFLOP/s", 1e12)
    name = f"{label} {FlashAttention3OfVllm.module}, pages of 128"
    work = _library(FlashAttention3OfVllm, large)
    results.add(name, work, other, large.flops, "TFLOP/s", 1e12)


def _lengths(size: str, ragged: Sequence[int]) -> Sequence[int]:
    """The lengths of a case by its name: ``4x4096``, or ``ragged``."""
    if size == "ragged":
        return ragged
    count, length = map(int, size.split("x"))
    return [length] * count


def _sdpa(case: PrefillCase, backend: SDPBackend) -> Work:
    """Torch's own attention, on keys and values that were repeated for each query head before."""
    group = case.heads.num_heads // case.heads.num_kv_heads
    key, value = (case.batched(each.repeat_interleave(group, 1)) for each in (case.key, case.value))
    query = case.batched(case.query)

    def work() -> torch.Tensor:
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True
            )
        return case.unbatched(out)

    return work


def _library(kind: type[FlashLibrary], case: PrefillCase | DecodeCase) -> Work:
    """A library's attention: over the pages, or over what a case has without."""

    @functools.cache
    def library() -> FlashLibrary:
        return kind()

    def work() -> torch.Tensor:
        common = case.common
        starts, longest = common.query_start_loc, (common.max_query_len, common.max_seq_len)
        if isinstance(case, PrefillCase) and not kind.paged:
            return library().attend(
                case.query, case.key, case.value, starts, starts, None, *longest, case.spec.scale
            )
        return library().attend(
            case.query, *case.cache, starts, common.seq_lens, common.block_table, *longest,
            case.spec.scale,
        )  # fmt: skip

    return work


def _contiguous(case: PrefillCase) -> Work:
    starts, capability = case.common.query_start_loc, capability_of(case.spec.device)
    config = tuning.prefill_config(case.spec, capability, paged=False)

    def work() -> torch.Tensor:
        prefill_contiguous(
            case.query, case.key, case.value, starts, starts, case.out, case.spec.scale,
            max_query_len=max(case.lengths), config=config,
        )  # fmt: skip
        return case.out

    return work


def _backend(backend: AttentionBackend, case: PrefillCase | DecodeCase) -> Work:
    metadata = backend.build(case.common)

    def work() -> torch.Tensor:
        _attend(backend, case, [case.cache], metadata)
        return case.out

    return work


def decode(results: Results, name: str) -> None:
    """One query of each of many long sequences."""
    size, _, page, *kind = name.split()
    heads = KINDS.get(" ".join(kind), Heads())
    lengths = _lengths(size, _RAGGED_TEXTS)
    case = DecodeCase(lengths, int(page), torch.device("cuda"), heads)
    expected = case.expected()
    label = f"decode {name}"

    def add(name: str, work: Work) -> None:
        results.add(f"{label} {name}", work, expected, case.bytes, "TB/s", 1e12)

    add("triton", _backend(TritonBackend(case.spec), case))
    add("lazy_plan", _backend(LazyPlanBackend(case.spec), case))

    if not heads.fp8_cache:
        for library in _LIBRARIES:
            if library.paged:
                add(library.module, _library(library, case))


def replayed(results: Results, name: str) -> None:
    """Decode from a graph, beside a copy from a graph that moves as many bytes.

    Once as one call, whose time has the launch of a graph in it and whatever the cache held before,
    and once as the calls of several layers, each with memory of its own, as a step has them.
    """
    size, _, page = name.split()
    case = DecodeCase(_lengths(size, _RAGGED_TEXTS), int(page), torch.device("cuda"))
    _replay_layers(results, f"decode {name} from a graph", case, 1)
    _replay_layers(results, f"decode {name} from a graph of {_LAYERS} layers", case, _LAYERS)


def _replay_layers(results: Results, label: str, case: DecodeCase, layers: int) -> None:
    def add(name: str, work: Callable[[], None], out: torch.Tensor, right: torch.Tensor) -> None:
        results.add(f"{label} {name}", _replay(work, out), right, layers * case.bytes, "TB/s", 1e12)

    half = int(case.bytes) // 2  # are read, and as many written
    source = torch.randn(half // case.heads.dtype.itemsize, dtype=case.heads.dtype, device="cuda")
    sources = [source, *(source.clone() for _ in range(layers - 1))]
    targets = [torch.empty_like(source) for _ in sources]
    add("copy", partial(_copy, sources, targets), targets[-1], source)
    del sources, targets
    caches = [case.cache, *(_cloned(case.cache) for _ in range(layers - 1))]
    expected = case.expected()
    for kind in (TritonBackend, LazyPlanBackend):
        backend = kind(case.spec)
        work = partial(_attend, backend, case, caches, backend.build(case.common))
        add(backend.name, work, case.out, expected)


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)


def _cloned(cache: LayerCache) -> LayerCache:
    return LayerCache(*(each.clone() for each in cache))


def _attend(
    backend: AttentionBackend,
    case: PrefillCase | DecodeCase,
    caches: Sequence[LayerCache],
    metadata: Any,
) -> None:
    """A step's attention, layer by layer. What ``lazy_plan`` plans it plans once for all."""
    for cache in caches:
        backend.forward(case.query, cache, metadata, case.out)


def _replay(work: Callable[[], None], out: torch.Tensor) -> Work:
    graph = graph_of(work)

    def replay() -> torch.Tensor:
        graph.replay()
        return out

    return replay


def _targets(results: Results, bandwidth: float) -> dict[str, Any]:
    """What was to be reached, what was, and whether that is enough."""
    speed = results.figures
    flash = "prefill 4x4096 SDPA flash"
    wanted: dict[str, tuple[str, Sequence[str], float]] = {
        "paged to SDPA flash": ("prefill 4x4096 triton paged 16", [flash], _PAGED_TARGET),
        "contiguous to SDPA flash": (
            "prefill 4x4096 triton contiguous",
            [flash],
            _CONTIGUOUS_TARGET,
        ),
    }
    named = [library.module for library in _LIBRARIES]
    for kind in ("", " d64", " d256"):
        case, ragged = f"prefill 4x4096{kind}", f"prefill ragged{kind}"
        ours = "triton paged 16"
        peers = [f"{case} {peer}" for peer in ("SDPA flash", "SDPA cuDNN", *named)]
        wanted[f"{case} to the best peer"] = (f"{case} {ours}", peers, _BEST_TARGET)
        wanted[f"{ragged} to even"] = (f"{ragged} {ours}", [f"{case} {ours}"], _EVEN_TARGET)
    for case in _REPLAYED:
        label = f"decode {case} from a graph of {_LAYERS} layers"
        wanted[f"{label} to a copy"] = (f"{label} triton", [f"{label} copy"], _GRAPH_TARGET)
    found: dict[str, dict[str, Any]] = {}
    if "decode 64x8192 page 16 triton" in speed:
        ratio = speed["decode 64x8192 page 16 triton"] / bandwidth
        found["decode to copy"] = {
            "is": round(ratio, 3), "target": _DECODE_TARGET, "met": ratio >= _DECODE_TARGET
        }  # fmt: skip
    for name, (row, rivals, target) in wanted.items():
        if row not in speed and row not in results.missing:
            continue  # it was not asked for
        base = max((speed[peer] for peer in rivals if peer in speed), default=None)
        value = speed[row] / base if row in speed and base else None
        met = value is not None and value >= target
        found[name] = {"is": value and round(value, 3), "target": target, "met": met}
    fa3 = speed.get(f"prefill 4x4096 {FlashAttention3.module}")
    if fa3 and "prefill 4x4096 triton contiguous" in speed:
        ratio = speed["prefill 4x4096 triton contiguous"] / fa3
        found["contiguous to FA3"] = {"is": round(ratio, 3), "target": None, "met": True}
    for case in ("64x8192 page 16", "64x8192 page 16 d256"):
        plain, fp8 = f"decode {case} triton", f"decode {_in_fp8(case)} triton"
        if plain in speed and fp8 in speed:
            # Bytes are those of each cache: half as many, nearly, at so many times the speed.
            gain = speed[fp8] / speed[plain]
            found[f"{fp8} to {plain}, bytes a second"] = {
                "is": round(gain, 3), "target": None, "met": True
            }  # fmt: skip
    return found


def _in_fp8(case: str) -> str:
    """The name of a case of decode over the same tokens in FP8."""
    size, _, page, *kind = case.split()
    return " ".join([size, "page", page, "fp8", *kind])


def main() -> int:
    """Measure, print, keep the results if that is asked for; 1 if a target was missed."""
    made = parser("Attention kernels beside their peers.")
    made.add_argument("--only", nargs="+", metavar="TEXT", help="cases with one of these in it")
    options = made.parse_args()
    needs_gpu(made)
    cases = [
        *((f"prefill {name}", prefill, name) for name in _PREFILLS),
        *((f"decode {name}", decode, name) for name in _DECODES),
        *((f"decode {name} from a graph", replayed, name) for name in _REPLAYED),
    ]
    if options.only is not None:
        labels = [label for label, _, _ in cases]
        cases = [each for each in cases if any(text in each[0] for text in options.only)]
        some(made, "--only", " ".join(options.only), cases, labels)
    results = Results()
    bandwidth = copy_bandwidth(results.timer) / 1e12
    results.rows.append(["copy", "", f"{bandwidth:.3g} TB/s", "", "", ""])
    for _, measure, name in cases:
        measure(results, name)
    targets = _targets(results, bandwidth)
    text = table(["what", "ms", "speed", "error", "least ms", "most ms"], results.rows)
    text += "\n\n" + "\n".join(f"{name}: {found}" for name, found in targets.items())
    text += "".join(f"\nleft out: {name}: {reason}" for name, reason in results.missing.items())
    data = {
        "gpu": torch.cuda.get_device_name(),
        "triton": importlib.metadata.version("triton"),
        "copy_tb_s": round(bandwidth, 3),
        "figures": {name: round(value, 3) for name, value in results.figures.items()},
        "least_and_most_ms": results.spread,
        "targets": targets,
        "missing": results.missing,
    }
    publish("attention", "Attention kernels", text, data, save=options.save)
    return 0 if all(found["met"] for found in targets.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
