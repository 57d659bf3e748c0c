"""Eager runs, watched operator by operator: where two part, and which rows collide.

And memory that is handed out uninitialized is given known contents, so that reads of it show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from pytest_cudafork.capture.interface.backend import describe
from pytest_cudafork.capture.interface.lines import line_at_work
from pytest_cudafork.capture.operators.higher_order import OperatorWatch
from pytest_cudafork.capture.operators.rules import Kind
from pytest_cudafork.capture.operators.traits import traits_of
from pytest_cudafork.capture.software.past_operators import not_compiled
from pytest_cudafork.capture.state.tensors import alias, has_memory

_SCATTERS = ("scatter", "scatter_")
_WRITERS = (
    *("index_put", "index_put_", "_index_put_impl_", "index_copy", "index_copy_"),
    *("put", "put_", *_SCATTERS),
)
_MOST_STEPS = 100_000


class _Step(NamedTuple):
    name: str
    where: str
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]


def unlike_line(run: Callable[[], Any], restore: Callable[[], None]) -> str:
    """Run eager code twice and return the line at which the runs part; "" if none is found.

    Args:
        run: runs it.
        restore: puts back what it started from.

    """
    runs: list[list[_Step]] = []
    for _ in range(2):
        steps: list[_Step] = []

        def see(op: Any, args: Any, kwargs: Any, result: Any, steps: list[_Step] = steps) -> None:
            if len(steps) < _MOST_STEPS:
                given = tuple(_digest((*args, *kwargs.values())))
                name, results = traits_of(op).name, tuple(_digest(result))
                steps.append(_Step(name, line_at_work(), given, results))

        restore()
        with _watched(see):
            run()
        runs.append(steps)
    restore()
    for one, other in zip(runs[0], runs[1], strict=False):
        if (one.name, one.where) != (other.name, other.where):
            return other.where or one.where
        if one.arguments != other.arguments or one.results != other.results:
            return one.where
    return ""


def _digest(tree: Any) -> Iterator[Any]:
    """Yield numbers and what stands for the contents of tensors, in nested lists and tuples."""
    if isinstance(tree, torch.Tensor):
        yield _of_tensor(tree)
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _digest(each)
    elif isinstance(tree, (bool, int, float, str)):
        yield tree


def _of_tensor(tensor: torch.Tensor) -> Any:
    with contextlib.suppress(Exception):  # a layout or a type that does not add up
        wide = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        wide = wide.detach().double().nan_to_num(nan=7.5)
        place = torch.arange(1, wide.numel() + 1, device=wide.device, dtype=torch.float64)
        return tuple(tensor.shape), float(wide.sum()), float((wide.reshape(-1) * place.sin()).sum())
    return tuple(tensor.shape)


class Collision(NamedTuple):
    """Rows of padding that are written where live rows are."""

    where: str
    words: str


def collisions(run: Callable[[], Any], rows: int, total: int) -> list[Collision]:
    """Run eager code on a padded batch and return where padding is written over live rows.

    Args:
        run: runs it.
        rows: how many first rows are live.
        total: how many rows the batch has.

    """
    found: list[Collision] = []

    def see(op: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = traits_of(op).name
        if name.partition("::")[2] not in _WRITERS:
            return
        for words in _collision(name, (*args, *kwargs.values()), rows, total):
            found.append(Collision(line_at_work(), words))

    with _watched(see):
        run()
    return found


def _collision(name: str, args: Any, rows: int, total: int) -> Iterator[str]:
    short = name.partition("::")[2]
    if short in _SCATTERS:
        places = _scattered(args, total)
    else:
        copies, puts = "index_copy" in short, short in ("put", "put_")
        accumulates = not copies and len(args) > 3 and bool(args[3])
        indices = [args[2]] if copies else [args[1]] if puts else list(args[1])
        if accumulates or len(indices) == 0 or any(one is None for one in indices[1:]):
            return
        places = _places(indices, total)
    if places is None:
        return
    live, padding = places[:rows].reshape(-1), places[rows:].reshape(-1)
    both = live[torch.isin(live, padding)]
    if both.numel():
        yield (
            f"{name} writes padded rows into {describe(args[0])} at "
            f"{', '.join(map(str, both.unique()[:4].tolist()))}, where it writes live rows, too"
        )


def _places(indices: list[Any], total: int) -> torch.Tensor | None:
    """Return one number for each element that is written, by row; None where rows are not known."""
    tensors = [one for one in indices if isinstance(one, torch.Tensor)]
    if not tensors or any(one.dtype is torch.bool for one in tensors):
        return None
    if tensors[0].dim() == 0 or any(one.shape != tensors[0].shape for one in tensors):
        return None
    if tensors[0].shape[0] != total:
        return None
    place = tensors[0].long()
    for one in tensors[1:]:
        place = place * (int(one.max()) + 1) + one.long()
    return place


def _scattered(args: Any, total: int) -> torch.Tensor | None:
    """Return the same for ``scatter``, which takes a place along one dimension for each element.

    Only along the first one can elements of two rows meet. What ``reduce=`` adds up, and a number
    that all places get, is the same in any order.
    """
    target, dim, index, source, *reduce = args
    if reduce or not isinstance(source, torch.Tensor) or dim % max(target.dim(), 1):
        return None
    if index.dim() == 0 or index.shape[0] != total:
        return None
    beside = torch.arange(index[0].numel(), device=index.device).view(index.shape[1:])
    return index * max(index[0].numel(), 1) + beside


class Filled:
    """Where memory was filled: the first lines of user code, and how often in all."""

    def __init__(self, value: int) -> None:
        self._value = value
        self.lines: list[str] = []
        self.count = 0

    def see(self, op: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Fill what ``torch.empty`` and its kin return."""
        leaves_it = traits_of(op).kind is Kind.EMPTY and isinstance(made, torch.Tensor)
        if leaves_it and has_memory(made) and made.numel() and made.element_size() > 1:
            alias(made).fill_(self._value)
            self.count += 1
            where = line_at_work()
            if where and where not in self.lines and len(self.lines) < 3:
                self.lines.append(where)


@contextlib.contextmanager
def filling(value: int) -> Iterator[Filled]:
    """Let memory that is handed out uninitialized hold this value, so that reads of it show.

    Gives who gets it.
    """
    filled = Filled(value)
    with _watched(filled.see):
        yield filled


@contextlib.contextmanager
def _watched(see: Callable[[Any, Any, dict[str, Any], Any], None]) -> Iterator[None]:
    with not_compiled(), OperatorWatch(see):  # the compiler does not like such modes
        yield
