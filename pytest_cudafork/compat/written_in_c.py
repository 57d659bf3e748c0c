"""Parts of the standard library that are written in C, below modules that a test may change.

Methods of ``socket.socket`` and ``json.JSONEncoder`` can be replaced by anybody. What these classes
stand on can not; Python gives it no public name.
"""

from __future__ import annotations

import _socket
import json
import json.encoder
import json.scanner
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def socket_pair(family: int, kind: int) -> tuple[_socket.socket, _socket.socket]:
    """Return two sockets that are connected: ``_socket.socketpair``.

    ``socket.socketpair`` makes objects of whatever class ``socket.socket`` is at that time.
    """
    return _socket.socketpair(family, kind, 0)


def json_writer(after_item: str = ",", after_key: str = ":") -> Callable[[Any], str]:
    """Return a function that writes plain data as JSON: ``json.encoder.c_make_encoder``.

    It is what ``json.dumps`` uses, by way of methods of ``json.JSONEncoder`` which may be replaced.
    Without it (an interpreter that has none of C) these have to do.
    """
    plain = json.JSONEncoder(check_circular=False, separators=(after_item, after_key))
    make: Any = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    quote: Any = json.encoder.encode_basestring_ascii
    if make is None:
        return plain.encode
    # no memory of containers, default, strings, indent, separators, sorting, skipping, NaN
    parts = make(None, plain.default, quote, None, after_key, after_item, False, False, True)

    def write(value: Any) -> str:
        return "".join(parts(value, 0))

    return write


def json_reader(
    constant: Callable[[str], Any] | None = None,
) -> Callable[[str, Callable[[dict[str, Any]], Any] | None], Any]:
    """Return a function that reads JSON text, with a hook for objects: ``c_make_scanner``.

    It is what ``json.loads`` uses, by way of methods of ``json.JSONDecoder``. It raises ValueError
    or StopIteration where the text is something else. ``constant`` is called for NaN and the like.
    """
    make: Any = json.scanner.c_make_scanner  # type: ignore[attr-defined]
    decoder = json.JSONDecoder
    settings = vars(decoder(parse_constant=constant))

    def read(text: str, hook: Callable[[dict[str, Any]], Any] | None) -> Any:
        if make is None:
            return decoder(object_hook=hook, parse_constant=constant).decode(text)
        scan = make(SimpleNamespace(**{**settings, "object_hook": hook}))
        value, end = scan(text, 0)
        if end != len(text):
            raise ValueError(f"{len(text) - end} characters of JSON are left over")
        return value

    return read
