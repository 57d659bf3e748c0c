"""Kernel names: the same short name for a kernel wherever its name was read.

A graph gives the name that the compiler wrote (``_ZN2at6native...``), the profiler a demangled one
with result and parameters. The short name is the demangled one without result, parameters and
namespaces; template arguments stay, since they tell an addition from a multiplication. A kernel
written in C or by Triton has its name already.
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib

_MOST_CHARACTERS = 160
_OPEN, _CLOSE = "<({[", ">)}]"
_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)::|\b[A-Za-z_]\w*::)+")
_TAIL = re.compile(r"(?: \[clone [^\]]*\]| const)+$")
_BETWEEN_BRACKETS = re.compile(r"> (?=>)")
_PART = re.compile(r"(\d+)")


@functools.lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """The comparable name of a kernel, from the compiler's or the profiler's."""
    short = demangled(name)
    if short != name or "(" in short:
        short = _without_result(_without_parameters(_TAIL.sub("", short)))
    short = _BETWEEN_BRACKETS.sub(">", _NAMESPACES.sub("", short)).strip()
    if len(short) > _MOST_CHARACTERS:
        # The end tells two long names apart as the whole would.
        short = f"{short[: _MOST_CHARACTERS - 9]}~{zlib.crc32(short.encode()):08x}"
    return short


def demangled(name: str) -> str:
    """Undo the compiler's encoding of a C++ name; other names pass."""
    if not name.startswith("_Z"):
        return name
    library = _libstdcxx()
    if library is not None:
        status = ctypes.c_int(-1)
        text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
        if text:
            result = ctypes.string_at(text).decode(errors="replace")
            library.free(ctypes.c_void_p(text))
            return result
    return _identifiers(name)


@functools.lru_cache(maxsize=1)
def _libstdcxx() -> ctypes.CDLL | None:
    """The C++ library that torch is linked with; the profiler decodes with the same one."""
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        library.free.restype = None
    except (OSError, AttributeError):
        return None
    return library


def _identifiers(name: str) -> str:
    """The nested identifiers at the front of an encoded name: ``_ZN2at6native3addE...``."""
    rest, parts = name[2:].removeprefix("N"), []
    while match := _PART.match(rest):
        begin = match.end()
        end = begin + int(match[1])
        parts.append(rest[begin:end])
        rest = rest[end:]
    return "::".join(parts) or name


def _without_parameters(name: str) -> str:
    if not name.endswith(")"):
        return name
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        if name[index] == ")":
            depth += 1
        elif name[index] == "(":
            depth -= 1
            if depth == 0:
                # "kernel()" has no parameters; "(anonymous namespace)" alone is no list of them.
                return name[:index] if index else name
    return name


def _without_result(name: str) -> str:
    """Leave out what stands before the last space that is in no brackets."""
    depth = 0
    for index in range(len(name) - 1, -1, -1):
        letter = name[index]
        if letter in _CLOSE:
            depth += 1
        elif letter in _OPEN:
            depth -= 1
        elif letter == " " and depth == 0:
            return name[index + 1 :]
    return name
