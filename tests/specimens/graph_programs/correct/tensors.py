"""Views, writing in place, ``out=``, indexing, dtypes and reductions, one line each: all right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.specimens.graph_programs.program import Program, Verdict, line

__all__ = ["PROGRAMS"]


def _counts(k: Tensor, n: Tensor) -> Tensor:
    found = torch.zeros(4, dtype=torch.int64, device=k.device)
    return found.scatter_add_(0, k, torch.ones_like(k)) * n


def _ring(x: Tensor, cache: Tensor, i: Tensor) -> Tensor:
    cache.copy_(cache.roll(-4, 0))
    cache[-4:] = x
    return cache[i].sum(0)


def _swap(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)
    return x * 2, y * 3


def _split_and_join(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    second.mul_(2)
    return torch.cat([second, first], -1)


def _unbound(x: Tensor) -> list[Tensor]:
    return [one * number for number, one in enumerate(x.unbind(0))]


def _foreach(x: Tensor, y: Tensor) -> Any:
    torch._foreach_mul_([x, y], 0.5)
    return torch._foreach_add([x, y], [y, x])


def _diagonal(square: Tensor) -> Tensor:
    square.diagonal().add_(1)
    return square @ square.T


def _mask_is_filled(x: Tensor, m: Tensor) -> Tensor:
    x[m] = 0.0
    return x.cumsum(-1)


def _ranges_meet(x: Tensor) -> Tensor:
    x[:, 1:] = x[:, :-1].clone()
    return x.sin()


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8), scale


def _bits(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return u & 15, u >> 4, (u ^ 255) | 1


def _as_other_type(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & 0x7FFFFFFF).view(torch.float32)


def _into_given_memory(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    sums, largest = torch.empty_like(x), torch.empty_like(x)
    torch.add(x, y, out=sums)
    torch.maximum(x, y, out=largest)
    return sums, largest


def _into_part(x: Tensor, w: Tensor, cache: Tensor) -> Tensor:
    torch.mm(x, w, out=cache[4:8])
    return cache.sum(-1)


def _top_out(x: Tensor) -> tuple[Tensor, Tensor]:
    values, places = torch.empty(4, 2, device=x.device), x.new_empty(4, 2, dtype=torch.int64)
    torch.topk(x, 2, out=(values, places))
    return values, places


def _mixed(h: Tensor, x: Tensor, b: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    return h + x, b * h.bfloat16(), d - x, h.float() @ b.float().T


def _numbers(x: Tensor, s: Tensor, n: Tensor) -> Tensor:
    return (x * s + n).clamp(min=s).pow(2) / 3


def _einsums(q: Tensor) -> Tensor:
    return torch.einsum("bhsd,bhtd->bhst", q, q).softmax(-1)


def _places(x: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    ordered, order = x.sort(dim=-1, stable=True)
    return ordered.index_select(0, k), torch.searchsorted(ordered, x)


def _windows(x: Tensor) -> Tensor:
    return x.unfold(1, 3, 1).mean(-1) + x.as_strided((4, 6), (8, 1), 1)


ROWS: dict[str, Callable[..., Any]] = {
    "transposed and contiguous": lambda x: x.t().contiguous() + 1,
    "shape by other sizes": lambda x: x.view(2, 2, 8).permute(1, 2, 0).reshape(4, 8),
    "broadcast": lambda x, v: x + v[None] * x.sum(0, keepdim=True),
    "expanded view as output": lambda v: (v * 2).expand(3, 8),
    "flip and roll": lambda x: x.flip(0).roll(1, 1),
    "negative and conjugated view": lambda z: (z.conj().imag, z.abs(), z * z.conj()),
    "strides of a window": _windows,
    "halves are changed and joined": _split_and_join,
    "rows one by one": _unbound,
    "view that is written": lambda x: (x.view(-1)[::2].zero_(), x * 2)[1],
    "input is swapped with another": _swap,
    "input changed and returned": lambda x: x.mul_(0.5),
    "relu in place of a fresh result": lambda x, w: (x @ w).relu_().sqrt_(),
    "diagonal is written": _diagonal,
    "ring of rows": _ring,
    "rows that overlap": _ranges_meet,
    "mask is filled with a number": _mask_is_filled,
    "masked_fill": lambda x, m: x.masked_fill(m, -1e4).softmax(-1),
    "where": lambda x, y, m: torch.where(m, x, y) + torch.where(m, 1.0, 0.0),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(4, 8)),
    "rows by index": lambda x, i: x[i],
    "columns and rows by index": lambda x, i, k: x[i, k],
    "index with a slice between": lambda image, i: image[:, :, i, 1:3],
    "rows are written by index": lambda cache, i, x: cache.index_copy_(0, i, x).sum(-1),
    "rows are added by index": lambda cache, k, x: cache.index_add_(0, k, x),
    "index_put": lambda cache, i, x: cache.index_put_((i,), x),
    "assignment by index": lambda cache, i, x: (cache.__setitem__(i, x), cache + 0)[1],
    "index_fill": lambda x, i: x.index_fill(0, i[:2], 0.0),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(4, 8), 1.5),
    "scatter_reduce": lambda v, k, x: v.new_zeros(4).scatter_reduce(0, k, x[:, 0], "amax"),
    "counts by scatter": _counts,
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(-1), -1),
    "masked_scatter": lambda x, y, m: x.masked_scatter(m, y),
    "one_hot with classes": lambda k: F.one_hot(k, 5).float(),
    "repeat_interleave with a size": lambda x, k: x.repeat_interleave(k, 0, output_size=4),
    "nonzero of fixed size": lambda m: torch.nonzero_static(m, size=6, fill_value=-1),
    "bucketize": lambda x, v: torch.bucketize(x, v.sort().values),
    "histogram with a range": lambda x: torch.histc(x, 8, -3.0, 3.0),
    "out of two operators": _into_given_memory,
    "out is a part of a buffer": _into_part,
    "out of two results": _top_out,
    "lists of tensors at once": _foreach,
    "half": lambda h: (h * 2).softmax(-1),
    "bfloat16": lambda b, w: b @ w.bfloat16(),
    "double": lambda d: (d @ d.T).logdet() * 0 + d.norm(),
    "complex": lambda z: torch.fft.fft(z, dim=-1).abs(),
    "real transform": lambda x: torch.fft.irfft(torch.fft.rfft(x), n=8),
    "several types": _mixed,
    "bytes": _bits,
    "rounded to int8": _quantized,
    "bits as another type": _as_other_type,
    "booleans": lambda m, x: (m ^ (x > 0), m.any(-1), m.all(), m.sum(0)),
    "float8": lambda x: x.to(torch.float8_e4m3fn).float(),
    "scalars of the device": _numbers,
    "number of the host": lambda x: x * torch.tensor(0.5) + 3,
    "full and arange": lambda x: (
        x + torch.full((4, 1), 2.0, device=x.device) + torch.arange(8, device=x.device)
    ),
    "ends of a range of the host": lambda v: v * torch.linspace(0, 1, 8, device=v.device),
    "triangle": lambda square: square.masked_fill(torch.ones_like(square).triu(1).bool(), 0.0),
    "max and its place": lambda x: (x.max(-1), x.argmin(0), x.amax()),
    "mean, deviation, median": lambda x: (x.mean(0), x.std(-1), x.median(-1)),
    "norms": lambda x: (x.norm(), torch.linalg.vector_norm(x, 1, -1), x.square().sum()),
    "cumulated": lambda x: (x.cumsum(0), x.cummax(-1), x.logcumsumexp(-1)),
    "logsumexp": lambda x: x.logsumexp(-1),
    "kth value and quantile": lambda x: (x.kthvalue(2, -1), x.quantile(0.3, -1)),
    "sorted": _places,
    "batched product": lambda q: torch.bmm(q[0], q[1].mT),
    "einsum": _einsums,
    "tensordot and outer": lambda x, w, v: (torch.tensordot(x, w, 1), torch.outer(v, v)),
    "triangular solve": lambda square: torch.linalg.solve_triangular(
        square.tril() + 9 * torch.eye(6, device=square.device), square, upper=False
    ),
    "Cholesky without a check": lambda square: (
        torch.linalg.cholesky_ex(square @ square.T + 6 * torch.eye(6, device=square.device)).L
    ),
    "LU without a check": lambda square: (
        torch.linalg.lu_factor_ex(square + 9 * torch.eye(6, device=square.device)).LU
    ),
    "inverse without a check": lambda square: (
        torch.linalg.inv_ex(square + 9 * torch.eye(6, device=square.device)).inverse
    ),
    "interpolated": lambda image: F.interpolate(image, size=(5, 5), mode="bilinear"),
    "sampled on a grid": lambda image: F.grid_sample(
        image, image[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False
    ),
    "padded": lambda image: F.pad(image, (1, 2, 0, 1), value=3.0),
    "convolution with a kernel from the input": lambda image, q: F.conv2d(
        image, image[:1, :, :3, :3]
    ),
    "nothing to compute": lambda x: x,
    "empty results": lambda x: (x[:0] * 2, x[:, 4:4].sum(0), x + 1),
    "dictionary and list of results": lambda x, y: {"a": [x + 1, (y * 2,)], "b": None, "c": 3},
    "operator that makes strided memory": lambda x: torch.empty_strided(
        (8, 4), (1, 8), device=x.device
    ).copy_(x.t()),
    "new memory filled at once": lambda x: x.new_empty(4, 8).fill_(2.0) * x,
    "lerp, addcmul, addcdiv": lambda x, y, s: torch.lerp(x, y, s).addcmul_(x, y).addcdiv(y, x * x),
    "cdist": lambda x, y: torch.cdist(x, y),
    "vander and polynomial": lambda v: torch.vander(v, 3) @ v[:3],
    "rotated halves": lambda q: torch.cat([-q[..., 4:], q[..., :4]], -1) * q.cos(),
    "renormalized": lambda x: x.renorm(2, 0, 1.0),
    "nan to numbers": lambda x: (x / (x > 0)).nan_to_num(0.0, 1.0, -1.0),
    "tril indices": lambda square: square[torch.tril_indices(6, 6, device=square.device).unbind(0)],
}

PROGRAMS = tuple(
    Program(name, line(fn), Verdict.RIGHT, "work on tensors") for name, fn in ROWS.items()
)
