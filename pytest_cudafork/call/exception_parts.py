"""Exceptions that a plain pickle does not bring back, taken apart and put together again.

An exception is pickled as its class and its ``args``, and made anew by a call; one whose
``__init__`` takes something else is lost, and with it a group that holds it. The parts do without
that call.
"""

from __future__ import annotations

from typing import Any

from pytest_cudafork.compat import cloudpickle_internals
from pytest_cudafork.compat.unpatched import pickle


def dump_parts(error: BaseException) -> bytes:
    """Return the pickle of what ``rebuilt`` is to be called with."""
    return cloudpickle_internals.dumps(_parts_of(error), _Pickler)


def rebuilt(kind: Any, args: tuple[Any, ...], attributes: dict[str, Any]) -> Any:
    """Return an exception of these parts, without a call of its ``__init__``."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class _Pickler(cloudpickle_internals.FilePickler):
    """Takes apart those inside of others, too, wherever that is needed."""

    def reducer_override(self, obj: Any) -> Any:
        """Say how an object is to be made again; NotImplemented is pickle's own way."""
        if isinstance(obj, BaseException) and not _comes_back(obj):
            return rebuilt, _parts_of(obj)
        return super().reducer_override(obj)


def _parts_of(error: BaseException) -> tuple[type, tuple[Any, ...], dict[str, Any]]:
    return type(error), error.args, dict(error.__dict__)


def _comes_back(error: BaseException) -> bool:
    try:
        return type(pickle.loads(cloudpickle_internals.dumps(error))) is type(error)
    except Exception:  # the exception's own code decides what it raises here
        return False
