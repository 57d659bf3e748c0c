"""Each backend over an FP8 cache gives what is in it exactly, and what was written within a bound.

The oracle is attention in float64: over the numbers that the cache holds, for exactness, and over
those that were written to it, for the bound that the format sets.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from sample_engine.attention.interface import AttentionBackend, AttentionSpec
from sample_engine.attention.registry import backend_class, choose
from sample_engine.errors import BackendUnavailableError
from tests.engine.attention.test_sdpa import windowed
from tests.engine.support.attention import Batch, Shape, batch_of, empty_cache, error, run
from tests.engine.support.fp8 import most_lost_by_attention

LENGTHS = [(3, 35), (1, 17), (13, 13), (1, 1)]
WITH_WINDOWS = ["reference", "sdpa"]
EVERYWHERE = [*WITH_WINDOWS, "lazy_plan", "triton"]


def _backend(name: str, spec: AttentionSpec, request: pytest.FixtureRequest) -> AttentionBackend:
    if name == "triton":
        pytest.importorskip("triton")
        request.getfixturevalue("interpreter")
    return choose(name, spec)


def _written_by(backend: AttentionBackend, plain: Batch) -> Batch:
    """A batch whose keys and values the backend itself writes to an FP8 cache."""
    shape = dataclasses.replace(plain.shape, fp8_cache=True)
    cache = empty_cache(shape, len(plain.cache.key))
    for index, (key, value) in enumerate(zip(plain.keys, plain.values, strict=True)):
        at = torch.arange(len(key))
        slots = plain.common.block_table[index][at // shape.page].long() * shape.page
        backend.write_kv(key, value, cache, slots + at % shape.page)
    return dataclasses.replace(plain, shape=shape, cache=cache)


@pytest.mark.parametrize("dim", [64, 256])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_the_cache_holds_is_computed_with_exactly(
    name: str, dim: int, request: pytest.FixtureRequest
) -> None:
    batch = batch_of(Shape(6, 2, dim, fp8_cache=True), LENGTHS, pad_reqs=1, pad_tokens=1)
    out = run(_backend(name, batch.shape.spec, request), batch, fill=7.0)
    assert error(out, batch) < 1e-5
    assert torch.equal(out[-1], torch.full_like(out[-1], 7.0))


@pytest.mark.parametrize("name", WITH_WINDOWS)
def test_a_window_hides_what_lies_before_it(name: str, request: pytest.FixtureRequest) -> None:
    batch = batch_of(Shape(6, 2, page=4, fp8_cache=True), LENGTHS)
    batch = dataclasses.replace(batch, expected=windowed(batch, 7))
    spec = dataclasses.replace(batch.shape.spec, window=7)
    assert error(run(_backend(name, spec, request), batch), batch) < 2e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", EVERYWHERE)
def test_what_is_lost_is_within_the_bound_of_the_format(
    name: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    plain = batch_of(Shape(6, 2, 64, dtype=dtype), LENGTHS, seed=3)
    backend = _backend(name, dataclasses.replace(plain.shape.spec, fp8_cache=True), request)
    batch = _written_by(backend, plain)
    lost = (run(backend, batch).double() - plain.expected).abs()
    rounding = 0.0 if dtype == torch.float32 else 4e-3  # of the computation itself
    bound = most_lost_by_attention(plain, plain.keys, plain.values) + rounding + 1e-5
    assert bool((lost <= bound).all())
    assert float(lost.max()) > 1e-3, "nothing was rounded"


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("name", EVERYWHERE)
def test_a_key_or_value_that_is_not_finite_is_seen_in_its_own_request_alone(
    name: str, request: pytest.FixtureRequest
) -> None:
    plain = batch_of(Shape(4, 2), [(1, 20), (1, 30), (1, 40)])
    plain.keys[0][5, 1, 3] = torch.inf
    plain.values[1][6, 0, 2] = torch.nan
    backend = _backend(name, dataclasses.replace(plain.shape.spec, fp8_cache=True), request)
    out = run(backend, _written_by(backend, plain))
    assert out[0, 2:].isnan().all()  # the query heads of that KV head
    assert out[1, :2].isnan().all()
    assert out[2].isfinite().all()
    assert out[0, :2].isfinite().all()


def test_flash_refuses_an_fp8_cache_by_name() -> None:
    spec = dataclasses.replace(Shape(fp8_cache=True).spec, device=torch.device("cuda", 0))
    with pytest.raises(BackendUnavailableError) as caught:
        choose("flash", spec)
    assert str(caught.value).startswith(
        "attention_backend='flash' cannot run here: it cannot read an FP8 KV cache, and "
        "kv_cache_dtype asks for one."
    )


def test_triton_refuses_an_fp8_cache_on_a_gpu_that_cannot_unpack_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    on_gpu = dataclasses.replace(Shape(fp8_cache=True).spec, device=torch.device("cuda", 0))
    for capability, wanted in (((8, 6), True), ((8, 9), False), ((9, 0), False)):
        monkeypatch.setattr(
            "sample_engine.device.platform.device_capability", lambda index, it=capability: it
        )
        reason = backend_class("triton").why_not(on_gpu)
        assert (reason is not None) is wanted
        if reason is not None:
            assert reason.endswith("capability 8.6; it needs 8.9 for an FP8 KV cache")
            assert backend_class("lazy_plan").why_not(on_gpu) == reason
