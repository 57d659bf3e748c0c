"""What the keywords of markers accept."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_cudafork.settings import AUTO, GRAPH_BACKENDS, METHODS
from pytest_cudafork.settings.environment import VISIBLE_GPUS

MARKER_METHODS = (AUTO, *METHODS)
SCOPES = ("test", "class", "module")
"""Which tests of a file share the process of an isolated one; a marker and an option take them."""
FIXTURES = ("own", "inherit")
"""Where the fixtures of an isolated test are set up: in its process, or in the pytest process."""

_MAY_BE_NONE = ("timeout", "gpus", "env")
_WORDS = {"method": MARKER_METHODS, "scope": SCOPES, "fixtures": FIXTURES}


def accepts(key: str, value: object) -> bool:
    """Whether a keyword of a marker may have this value."""
    if key == "backends":
        return (
            isinstance(value, list | tuple)
            and 0 < len(value) <= len(GRAPH_BACKENDS)
            and all(isinstance(name, str) and name in GRAPH_BACKENDS for name in value)
            and len(set(value)) == len(value)
        )
    if key in _WORDS:
        return isinstance(value, str) and value in _WORDS[key]
    if value is None:
        return key in _MAY_BE_NONE
    if key == "gpus":
        return type(value) is int and value > 0
    if key == "env":
        return isinstance(value, Mapping) and all(map(_is_variable, value.items()))
    if key == "timeout":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return isinstance(value, str) and bool(value.strip())


def _is_variable(pair: tuple[object, object]) -> bool:
    """Whether these are the name and the value of a variable that an environment can hold."""
    from pytest_cudafork.settings.arguments import check_variable  # late: few markers have one

    try:
        check_variable(*pair)
    except (TypeError, ValueError):
        return False
    return True


def against_gpus(env: Mapping[str, str] | None) -> str:
    """Say why variables do not go with GPUs that a test is given, "" if they do."""
    if VISIBLE_GPUS not in (env or {}):
        return ""
    return (
        f"(env={{{VISIBLE_GPUS!r}: ...}}) on a test that is given GPUs, which this variable names "
        "for it: leave out one of the two"
    )
