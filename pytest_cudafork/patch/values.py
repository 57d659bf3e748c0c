"""The keys and values of patches on their way to other processes, and which of them may not go."""

from __future__ import annotations

import sys
from typing import Any

from pytest_cudafork.compat.unpatched import io
from pytest_cudafork.errors import ChildError


def pickled(call: str, what: str, thing: object) -> bytes:
    """Return the pickle of what a patch sets, which every process can turn into a copy.

    Args:
        call: What messages begin with.
        what: What the thing is to the call, as "value".
        thing: What is to be pickled.

    Raises:
        ChildError: It has no pickle, or one that cannot be read; or it is or holds a mock or an
            open file, of which a copy would be another thing than what the test has.

    """
    import cloudpickle

    from pytest_cudafork.call.pickling import modules_by_value
    from pytest_cudafork.compat.cloudpickle_internals import FilePickler, dumps
    from pytest_cudafork.process.protocol import unpicklable

    class Pickler(FilePickler):
        def persistent_id(self, one: object) -> None:
            """Have a look at each object that goes into the pickle."""
            _refuse(one)

    try:
        with modules_by_value():
            data = dumps(thing, Pickler)
        cloudpickle.loads(data)
    except Exception as error:  # pickling runs the object's own code, which may raise anything
        refused = isinstance(error, _Refused)
        reason = f"{error}" if refused else unpicklable.reason(error, thing)
        raise ChildError(
            f"{call}: the {what}, a {_kind(thing)}, cannot be sent to other processes: "
            f"{reason}. Give a function or a plain value."
        ) from error
    return data


class _Refused(Exception):
    """What pickles, and would still not be the same in another process."""


def _refuse(one: object) -> None:
    kind = type(one)  # what it says of itself may be another thing's class
    if issubclass(kind, _mocks()):
        raise _Refused(
            f"the mock {_kind(one)} would note in a child, and not here, how it is called there"
        )
    if issubclass(kind, io.IOBase) and not issubclass(kind, (io.StringIO, io.BytesIO)):
        raise _Refused(
            f"the file {getattr(one, 'name', '')!r}, a {_kind(one)}, is open in this process alone"
        )


def _mocks() -> tuple[type, ...]:
    """Return what all mocks are instances of, as far as anybody has imported it."""
    modules = (sys.modules.get(name) for name in ("unittest.mock", "mock"))
    found: list[Any] = [getattr(module, "NonCallableMock", None) for module in modules]
    return tuple(one for one in found if isinstance(one, type))


def _kind(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"
