"""Parts of the standard library that are written in C, below modules that a test may change.

Methods of ``socket.socket`` and ``json.JSONEncoder`` can be replaced by anybody. What these classes
stand on can not; Python gives it no public name.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

# Not by way of json: a watched program would import that before its own first line.
try:
    import _json
except ImportError:  # an interpreter that has none of C
    _json = None  # type: ignore[assignment]

_CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}


def socket_pair(family: int, kind: int) -> tuple[_socket.socket, _socket.socket]:
    """Return two sockets that are connected: ``_socket.socketpair``.

    ``socket.socketpair`` makes objects of whatever class ``socket.socket`` is at that time.
    """
    return _socket.socketpair(family, kind, 0)


def set_signal_handler(number: int, handler: Any) -> Any:
    """Set what a signal means and return what it meant before: ``_signal.signal``.

    ``signal.signal`` makes members of an enumeration of both, which takes longer than the call.
    """
    # of an enumeration, which it may be, C knows nothing
    return _signal.signal(number, int(handler) if isinstance(handler, int) else handler)


def signal_handler(number: int) -> Any:
    """Return what a signal means: ``_signal.getsignal``; see ``set_signal_handler``."""
    return _signal.getsignal(number)


def set_signal_mask(how: int, numbers: Iterable[int]) -> set[int]:
    """Hold signals back, or let them through: ``_signal.pthread_sigmask``; return the old mask."""
    before: set[int] = _signal.pthread_sigmask(how, numbers)
    return before


def call_in_c(name: str, *numbers: int) -> int:
    """Call a function of the C library with whole numbers, as ``ctypes`` does: ``_ctypes``.

    Importing ``ctypes`` takes longer than all else that is done before a program is started.

    Raises:
        OSError: There is no such function.

    """
    import _ctypes

    library: Any = _ctypes
    function = library.dlsym(library.dlopen(None, 0), name)
    return int(library.call_function(function, numbers))


def json_writer(after_item: str = ",", after_key: str = ":") -> Callable[[Any], str]:
    """Return a function that writes plain data as JSON: ``_json.make_encoder``.

    It is what ``json.dumps`` uses, by way of methods of ``json.JSONEncoder`` which may be replaced.
    Without it (an interpreter that has none of C) these have to do.
    """
    if _json is None:
        import json

        return json.JSONEncoder(check_circular=False, separators=(after_item, after_key)).encode
    made: Any = _json
    # no memory of containers, default, strings, indent, separators, sorting, skipping, NaN
    quote = made.encode_basestring_ascii
    parts = made.make_encoder(None, _refuse, quote, None, after_key, after_item, False, False, True)

    def write(value: Any) -> str:
        return "".join(parts(value, 0))

    return write


def _refuse(value: object) -> object:
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def json_reader(
    constant: Callable[[str], Any] | None = None,
) -> Callable[[str, Callable[[dict[str, Any]], Any] | None], Any]:
    """Return a function that reads JSON text, with a hook for objects: ``_json.make_scanner``.

    It is what ``json.loads`` uses, by way of methods of ``json.JSONDecoder``. It raises ValueError
    or StopIteration where the text is something else. ``constant`` is called for NaN and the like.
    """
    settings = {
        **dict.fromkeys(("object_pairs_hook", "array_hook")),
        "strict": True,
        "parse_float": float,
        "parse_int": int,
        "parse_constant": constant or _CONSTANTS.__getitem__,
    }

    def read(text: str, hook: Callable[[dict[str, Any]], Any] | None) -> Any:
        if _json is None:
            import json

            return json.JSONDecoder(object_hook=hook, parse_constant=constant).decode(text)
        made: Any = _json
        scan = made.make_scanner(SimpleNamespace(**{**settings, "object_hook": hook}))
        try:
            value, end = scan(text, 0)
        except SystemError:  # CPython 3.10 and 3.11 have no other error until json is imported
            raise ValueError("this is no JSON") from None
        if end != len(text):
            raise ValueError(f"{len(text) - end} characters of JSON are left over")
        return value

    return read
