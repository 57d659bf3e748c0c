"""The memory that code writes beside what it returns: what to compare where it returns none."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Mapping
from typing import Any

import torch

from pytest_cudafork.capture.interface.backend import Recording
from pytest_cudafork.capture.state.compare import leaves
from pytest_cudafork.capture.state.tensors import storage_of
from pytest_cudafork.errors import GraphUsageError


def has_tensors(result: Any) -> bool:
    """Whether there is a tensor below what a function returned."""
    return any(isinstance(leaf, torch.Tensor) for leaf in leaves(result, "output").values())


def written_by(
    recording: Recording, known: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Return the tensors in whose memory recorded work writes, and which of them it reads, too.

    Memory that the work itself has allocated is left out. A tensor has its path in ``known``, else
    its type and the line that writes it first; of several on the same memory the biggest counts.
    """
    uses = {use.pointer: use for use in recording.uses or () if use.writes and not use.owned}
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, tensor in known.items():
        where = storage_of(tensor)
        if where in uses:
            found.setdefault(where, (path, tensor))
    missing = {where for where in uses if where not in found}
    for where, tensor in _living_tensors(missing).items():
        use = uses[where]
        nodes = recording.nodes or ()
        line = nodes[use.node].where if 0 <= use.node < len(nodes) else ""
        # A path shows keys of up to 60 characters.
        name = f"#{list(uses).index(where)} {use.tensor}"[:30]
        if line:
            name += f" {os.path.basename(line)}"[:26]
        found[where] = name, tensor
    read = {path for where, (path, _) in found.items() if uses[where].reads}
    return dict(found.values()), read


def _living_tensors(places: set[int]) -> dict[int, torch.Tensor]:
    """Return by address the biggest tensors that lie there, of all that the process holds."""
    found: dict[int, torch.Tensor] = {}
    for _ in range(2):
        if not places - found.keys():
            break
        for one in gc.get_objects():
            if issubclass(type(one), torch.Tensor):
                where = storage_of(one)
                if where in places and (where not in found or one.numel() > found[where].numel()):
                    found[where] = one
        # Objects that were frozen, as those of a fork server are, are not listed.
        if not gc.get_freeze_count():
            break
        if places - found.keys():
            gc.unfreeze()
    return found


def refuse_lazy(result: Any, what: object) -> None:
    """Refuse a generator or a coroutine: nothing of its body has run.

    Raises:
        GraphUsageError: it is one.

    """
    kinds = (
        (inspect.isgenerator, "a generator", "return what it yields, without a yield"),
        (inspect.iscoroutine, "a coroutine", "give a plain function that runs it to its end"),
        (inspect.isasyncgen, "an asynchronous generator", "give a plain function"),
    )
    for is_one, kind, todo in kinds:
        if is_one(result):
            if not inspect.isasyncgen(result):
                result.close()
            raise GraphUsageError(
                f"{what} returned {kind}: its body has not run, so there is nothing to compare; "
                f"{todo}"
            )


def nothing_compared(what: str, todo: str) -> GraphUsageError:
    """Return the error of a check that looked at no tensor."""
    return GraphUsageError(
        f"nothing was compared, so this would pass whatever the graph does: {what}; {todo}"
    )
