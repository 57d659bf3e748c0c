"""The markers: the table, its ``--markers`` text, and the reading of their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cudafork.compat import forked
from pytest_cudafork.settings import AUTO, GRAPH_BACKENDS, METHODS
from pytest_cudafork.settings.marker_map import Mark, iter_marks, shown

if TYPE_CHECKING:
    from pytest_cudafork.settings.gpu_requests import GpuWish

DEFAULT_TIMEOUT = 600.0
"""Seconds after which an isolated test is ended, so that a hang never stops the session."""

MARKER_METHODS = (AUTO, *METHODS)
SCOPES = ("test", "module")


class MarkerError(ValueError):
    """A marker was given arguments that it does not take; Recoverable by correcting the marker."""


class Marker(NamedTuple):
    """One marker: the keywords it takes, with the words for what each accepts."""

    name: str
    signature: str
    doc: str
    keywords: Mapping[str, str]


MARKERS = (
    Marker(
        "spawn_only",
        "spawn_only()",
        "run the test in a fresh interpreter; it is never forked, whatever the options say",
        {},
    ),
    Marker(
        "cuda_isolated",
        f"cuda_isolated(method='auto', timeout={DEFAULT_TIMEOUT:.0f}, scope='test')",
        "run the test in a process of its own: method is auto, fork, forkserver or spawn; timeout "
        "in seconds; scope='module' shares the process with the other such tests of the file",
        {
            "method": f"one of {', '.join(MARKER_METHODS)}",
            "timeout": "a number of seconds above 0",
            "scope": f"one of {', '.join(SCOPES)}",
        },
    ),
    Marker(
        "cuda_fork_ok",
        "cuda_fork_ok(reason=...)",
        "the test may fork while CUDA is initialized; its children are still watched",
        {"reason": "a text that is not empty"},
    ),
    Marker(
        "gpus",
        "gpus(n, share=False, wait=1800)",
        "run the test in a process of its own that sees n GPUs, which no other test has meanwhile; "
        "share=True lets others have them that allow it too; wait in seconds for them",
        {
            "n": "a whole number of GPUs above 0",
            "share": "True or False",
            "wait": "a number of seconds above 0",
        },
    ),
    Marker(
        "graph_capture",
        "graph_capture(backends=['software', 'cuda'])",
        "run the test once with each way to capture graphs; cuda is skipped where there is no GPU",
        {"backends": "a list of one or both of software, cuda"},
    ),
)


MAPPED = {marker.name: marker.keywords for marker in MARKERS if marker.name != "graph_capture"}
"""The markers that others can be read as; the tests of ``graph_capture`` are made too early."""


class Marks(NamedTuple):
    """What the markers of one test ask for."""

    spawn_only: bool = False
    isolated: bool = False
    method: str = "auto"
    timeout: float | None = None
    scope: str = "test"
    fork_ok: str | None = None
    gpus: GpuWish | None = None
    graphs: tuple[str, ...] = ()
    """The graph backends to run the test with; none: it is not marked."""
    complaint: str = ""
    """What is wrong with the markers; the test fails for it in its set-up."""
    left_alone: bool = False
    """The test runs as it is, whatever the options say: it isolates its work by itself."""


def register(config: pytest.Config) -> None:
    """Tell pytest about the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", f"{marker.signature}: {marker.doc}.")


_NAMES = frozenset(marker.name for marker in MARKERS)
_UNMARKED = Marks()
_MARKS = pytest.StashKey[Marks]()
CHILD_ENV = pytest.StashKey[dict[str, str]]()
"""Environment variables for the child of an item, set before any of its code is imported there.

They come of the item's marker for GPUs. An item that has some is never given a child that was
started ahead of its turn by ``spawn``.
"""


def marks_of(item: pytest.Item) -> Marks:
    """Return what the markers of a test ask for; read once, because every test is asked often."""
    marks = item.stash.get(_MARKS, None)
    if marks is None:
        try:
            marks = read_marks(item)
        except MarkerError as error:
            marks = Marks(complaint=f"{error}{_origins(item)}")
        if forked.is_marked(item):
            wrong = marks.complaint or forked.complaint(item)
            marks = marks._replace(isolated=True, complaint=wrong)
        item.stash[_MARKS] = marks
    return marks


def _origins(item: pytest.Item) -> str:
    """Say which markers of the suite were read as ours, where one of them may be what is wrong."""
    try:
        read = [(mark, origin) for mark, origin in iter_marks(item) if origin is not None]
    except ValueError:
        return ""  # that is what was told
    words = [f"@pytest.mark.{shown(origin)} as {shown(mark)}" for mark, origin in read]
    return f" (cuda_fork_marker_map reads {', '.join(words)})" if words else ""


def leave_alone(item: pytest.Item) -> None:
    """Have a test run in this process, with nothing around it, whatever its markers say."""
    item.stash[_MARKS] = Marks(left_alone=True)


def read_marks(item: pytest.Item) -> Marks:
    """Read the closest marker of each name.

    Raises:
        MarkerError: a marker has an argument it does not take, or a value it does not accept.

    """
    closest: dict[str, Mark] = {}
    try:
        for mark, _ in iter_marks(item):
            if mark.name in _NAMES:
                closest.setdefault(mark.name, mark)
    except ValueError as error:
        raise MarkerError(str(error)) from None
    if not closest:
        return _UNMARKED
    values = {
        marker.name: _keywords(marker, closest[marker.name])
        for marker in MARKERS
        if marker.name in closest and marker.name != "gpus"
    }
    gpus = _gpus(closest["gpus"]) if "gpus" in closest else None
    isolated = values.get("cuda_isolated", {})
    if "spawn_only" in values and isolated.get("method", "spawn") not in ("auto", "spawn"):
        order = list(closest)  # the closest first
        if order.index("cuda_isolated") < order.index("spawn_only"):
            raise MarkerError(
                f"@pytest.mark.cuda_isolated(method={isolated['method']!r}) contradicts "
                "@pytest.mark.spawn_only on the same test or around it, which says that it is "
                "never forked: remove one of them"
            )
    fork_ok = values.get("cuda_fork_ok")
    if fork_ok is not None and "reason" not in fork_ok:
        raise MarkerError(
            "@pytest.mark.cuda_fork_ok needs a reason: write cuda_fork_ok(reason='why the children "
            "never touch CUDA')"
        )
    return Marks(
        spawn_only="spawn_only" in values,
        isolated="cuda_isolated" in values or gpus is not None,
        method=isolated.get("method", "auto"),
        timeout=isolated.get("timeout"),
        scope=isolated.get("scope", "test"),
        fork_ok=fork_ok["reason"] if fork_ok is not None else None,
        gpus=gpus,
        graphs=tuple(values["graph_capture"].get("backends", GRAPH_BACKENDS))
        if "graph_capture" in values
        else (),
    )


def _gpus(mark: Mark) -> GpuWish:
    """Read the one marker that takes a number."""
    from pytest_cudafork.settings.gpu_requests import read_gpus_mark

    try:
        return read_gpus_mark(mark)
    except ValueError as error:
        raise MarkerError(str(error)) from None


def _keywords(marker: Marker, mark: Mark) -> dict[str, Any]:
    """Check a mark against its table entry."""
    if mark.args:
        raise MarkerError(
            f"@pytest.mark.{marker.name} takes keywords only, not {mark.args!r}: write "
            f"{marker.signature}"
        )
    for key, value in mark.kwargs.items():
        if key not in marker.keywords:
            raise MarkerError(
                f"@pytest.mark.{marker.name} does not take {key!r}: write {marker.signature}"
            )
        if not _accepts(key, value):
            raise MarkerError(
                f"@pytest.mark.{marker.name}({key}={value!r}): {key} is {marker.keywords[key]}"
            )
    return dict(mark.kwargs)


def _accepts(key: str, value: object) -> bool:
    if key == "backends":
        return (
            isinstance(value, list | tuple)
            and 0 < len(value) <= len(GRAPH_BACKENDS)
            and all(isinstance(name, str) and name in GRAPH_BACKENDS for name in value)
            and len(set(value)) == len(value)
        )
    if key in ("method", "scope"):
        return isinstance(value, str) and value in (MARKER_METHODS if key == "method" else SCOPES)
    if key == "timeout":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return isinstance(value, str) and bool(value.strip())
