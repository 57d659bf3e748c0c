"""The file of a profile: what each test of a suite costs, recorded on one kind of machine."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_cudafork.documents.writing import write_at_once
from pytest_cudafork.settings.sizes import spell_size

if TYPE_CHECKING:
    from pytest_cudafork.gpus.inventory import Gpu

_VERSION = 1
_KEY = "pytest_cudafork_profile"


class ProfileError(ValueError):
    """A file is no profile, or none of this machine; Recoverable: name another, or record it."""


class Cost(NamedTuple):
    """What one test took: seconds without waiting for GPUs; bytes at their peak, 0: not known.

    ``vram`` is the most on one of its ``gpus``, ``ram`` what its process had at most.
    """

    seconds: float
    gpus: int = 0
    vram: int = 0
    ram: int = 0


Models = dict[str, int]
"""The models of GPUs of a machine, with the most bytes that one of each has; 0: not known."""
_PART = 16
"""Sizes of one model differ by this part at most: another driver keeps more of it for itself, and
an older one does not say how much."""


def models_of(gpus: Iterable[Gpu]) -> Models:
    """Return the models of GPUs."""
    found: Models = {}
    for gpu in gpus:
        found[gpu.name] = max(gpu.memory, found.get(gpu.name, 0))
    return found


def _are_among(models: Models, recorded: Models) -> bool:
    """Whether a profile was recorded on GPUs of these models, of any number of them."""
    if not models.keys() <= recorded.keys() or bool(models) != bool(recorded):
        return False
    pairs = [sorted((size, recorded[name])) for name, size in models.items()]
    return all(less == 0 or (more - less) * _PART <= more for less, more in pairs)


def read_profile(path: str, models: Models) -> dict[str, Cost]:
    """Read a profile that was recorded on such GPUs; any number of them.

    Raises:
        ProfileError: it cannot be read, is none, or is of another machine.

    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise ProfileError(f"{path} is a pipe or a device, and no profile")
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except OSError as error:
        raise ProfileError(
            f"{path}: {error.strerror}: record it with --cuda-fork-profile"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ProfileError(
            f"{path} is no profile, or torn ({error}): record it anew with --cuda-fork-profile"
        ) from None
    try:
        if data[_KEY] != _VERSION:
            raise ProfileError(f"{path} is a profile of another version: record it anew")
        recorded = {str(name): int(size) for name, size in data["gpus"].items()}
        costs = {str(test): _cost(values) for test, values in data["tests"].items()}
    except ProfileError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ProfileError(
            f"{path} is no profile ({type(error).__name__}: {error}): record it with "
            "--cuda-fork-profile"
        ) from None
    if not _are_among(models, recorded):
        raise ProfileError(
            f"{path} was recorded on another machine: it had {_spell(recorded)}, this one has "
            f"{_spell(models)}; record it here, to another file"
        )
    return costs


def _cost(values: Mapping[str, Any]) -> Cost:
    cost = Cost(**{name: values[name] for name in Cost._fields})
    whole = all(type(one) is int and one >= 0 for one in cost[1:])
    if not whole or type(cost.seconds) not in (int, float) or not 0 <= cost.seconds < math.inf:
        raise ValueError(f"{values!r} is not what a test costs")
    return cost


def _spell(models: Models) -> str:
    return ", ".join(f"{name} ({spell_size(size)})" for name, size in models.items()) or "no GPU"


def write_profile(path: str, models: Models, costs: Mapping[str, Cost]) -> None:
    """Write a profile, all of it or nothing.

    Raises:
        OSError: it cannot be written.

    """
    tests = {test: costs[test]._asdict() for test in sorted(costs)}
    document = {_KEY: _VERSION, "gpus": models, "tests": tests}
    # Not as documents for others: a name that is no UTF-8 has to be the same when it is read.
    write_at_once(path, json.dumps(document, indent=1) + "\n")
