"""The markers: the table, its ``--markers`` text, and the reading of their arguments."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from pytest_cudafork.compat.plugins import forked
from pytest_cudafork.settings import GRAPH_BACKENDS, METHODS
from pytest_cudafork.settings.marker_values import (
    FIXTURES,
    MARKER_METHODS,
    SCOPES,
    accepts,
    against_gpus,
)

if TYPE_CHECKING:
    from pytest_cudafork.settings.gpu_requests import GpuWish
    from pytest_cudafork.settings.marker_map import Mark, MarkerMap

DEFAULT_TIMEOUT = 600.0
"""Seconds after which an isolated test is ended, so that a hang never stops the session."""

ISOLATED, ALIAS = "cuda_isolated", "isolated"
"""The marker that isolates a test, and its other name."""


class MarkerError(ValueError):
    """A marker was given arguments that it does not take; Recoverable by correcting the marker."""


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class Marker(NamedTuple):
    """One marker: the keywords it takes, with the words for what each accepts."""

    name: str
    signature: str
    doc: str
    keywords: Mapping[str, str]


_ISOLATED_SIGNATURE = (
    f"(method='auto', timeout={DEFAULT_TIMEOUT:.0f}, gpus=None, fixtures='own', scope='test', "
    "env=None)"
)
_ISOLATED_KEYWORDS = {
    "method": f"one of {', '.join(MARKER_METHODS)}",
    "timeout": "a number of seconds above 0",
    "gpus": "a whole number of GPUs above 0",
    "fixtures": f"one of {', '.join(FIXTURES)}",
    "scope": f"one of {', '.join(SCOPES)}",
    "env": "a dict of names and texts",
}

MARKERS = (
    Marker(
        "spawn_only",
        "spawn_only()",
        "run the test in a fresh interpreter; it is never forked, whatever the options say",
        {},
    ),
    Marker(
        ISOLATED,
        f"{ISOLATED}{_ISOLATED_SIGNATURE}",
        "run the test in a process of its own: method is auto, fork, forkserver or spawn; timeout "
        "in seconds; gpus is how many GPUs it sees, as with the marker of that name; "
        "fixtures='inherit' sets its fixtures up in the pytest process and runs its body alone in "
        "the other one; scope='class' or 'module' shares the process with the other such tests of "
        "the class or file; env is set there before anything is imported",
        _ISOLATED_KEYWORDS,
    ),
    Marker(
        ALIAS,
        f"{ALIAS}(...)",
        f"the same as {ISOLATED}, unless the project has a marker of this name",
        {},
    ),
    Marker(
        "cuda_fork_ok",
        "cuda_fork_ok(reason=...)",
        "the test may fork while CUDA is initialized; its children are still watched",
        {"reason": "a text that is not empty"},
    ),
    Marker(
        "gpus",
        "gpus(n, share=False, memory=None, wait=1800)",
        "run the test in a process of its own that sees n GPUs, which no other test has meanwhile; "
        "share=True lets others have them that allow it too; memory='20GiB' is what it needs of "
        "each, and tests that say so share a GPU as far as it has room; wait in seconds for them",
        {
            "n": "a whole number of GPUs above 0",
            "share": "True or False",
            "memory": "a size, as in '20GiB'",
            "wait": "a number of seconds above 0",
        },
    ),
    Marker(
        "graph_capture",
        "graph_capture(backends=['software', 'cuda'])",
        "run the test once with each way to capture graphs; cuda is skipped where there is no GPU",
        {"backends": "a list of one or both of software, cuda"},
    ),
    Marker(
        "check_captures",
        "check_captures(True)",
        "look, or with False do not look, at the graphs that the test captures and replays, "
        "whatever --cuda-fork-captures says",
        {},
    ),
    Marker(
        "start_methods",
        "start_methods('fork', 'forkserver', 'spawn')",
        "run the test once with each start method of multiprocessing (and of vLLM), each time in a "
        "process of its own; what runs under another method all the same is counted",
        {},
    ),
)


MAP: "pytest.StashKey[MarkerMap]" = pytest.StashKey()
"""How a session reads the markers of its suite; not there if it has no map."""
_MAKE_TESTS = ("graph_capture", "start_methods")
_BY_POSITION = ("check_captures", "gpus", "start_methods")
MAPPED = {
    **{each.name: each.keywords for each in MARKERS if each.name not in _MAKE_TESTS},
    ALIAS: _ISOLATED_KEYWORDS,
}
"""The markers that others can be read as; those that make several tests of one come too early."""


class Marks(NamedTuple):
    """What the markers of one test ask for."""

    spawn_only: bool = False
    isolated: bool = False
    method: str = "auto"
    timeout: float | None = None
    scope: str | None = None
    """One of ``SCOPES``; None: as the session says."""
    fixtures: str = "own"
    env: tuple[tuple[str, str], ...] = ()
    """Variables of the test's process, from before any of its code is imported."""
    fork_ok: str | None = None
    gpus: "GpuWish | None" = None
    graphs: tuple[str, ...] = ()
    """The graph backends to run the test with; none: it is not marked."""
    check_captures: bool | None = None
    """Whether captures of the test are looked at; None: as the session says."""
    start_methods: tuple[str, ...] = ()
    """The start methods to run the test with; none: it is not marked."""
    complaint: str = ""
    """What is wrong with the markers; the test fails for it in its set-up."""
    left_alone: bool = False
    """The test runs as it is, whatever the options say: it isolates its work by itself."""


def parametrize(
    metafunc: pytest.Metafunc, fixture: str, values_of: Callable[[Marks], tuple[str, ...]]
) -> bool:
    """Make one test of a function for each value of its marker, which ``fixture`` gets.

    Returns whether that was done: of a wrong marker the test's set-up tells.
    """
    try:
        values = values_of(read_marks(metafunc.definition))
    except MarkerError:
        return False
    if fixture not in metafunc.fixturenames:
        metafunc.fixturenames.append(fixture)
    metafunc.parametrize(fixture, values, indirect=True, ids=list(values))
    return True


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


WATCHER = pytest.StashKey[Callable[[int, bytes], None]]()
"""What looks at an isolated test now and then: it is given its process id and its cookie."""


def marks_of(item: pytest.Item) -> Marks:
    """Return what the markers of a test ask for; read once, because every test is asked often."""
    marks = item.stash.get(_MARKS, None)
    if marks is None:
        try:
            marks = read_marks(item)
        except MarkerError as error:
            marks = Marks(complaint=f"{error}{_origins(item)}")
        if marks.start_methods and not _is_made_for_one(item):
            marks = marks._replace(complaint=_NOT_PARAMETRIZED)
        if forked.is_marked(item):
            wrong = marks.complaint or forked.complaint(item)
            marks = marks._replace(isolated=True, complaint=wrong)
        item.stash[_MARKS] = marks
    return marks


def _iter_marks(item: pytest.Item) -> "Iterator[tuple[Mark, pytest.Mark | None]]":
    """Yield the marks of a test, the closest first, each with that of the suite it is read from."""
    marker_map = item.config.stash.get(MAP, None)
    if marker_map is None:
        yield from ((mark, None) for mark in item.iter_markers())
        return
    from pytest_cudafork.settings.marker_map import iter_marks  # late: most suites have no map

    yield from iter_marks(item, marker_map)


def _origins(item: pytest.Item) -> str:
    """Say which markers of the suite were read as ours, where one of them may be what is wrong."""
    if item.config.stash.get(MAP, None) is None:
        return ""
    from pytest_cudafork.settings.marker_map import shown

    try:
        read = [(mark, origin) for mark, origin in _iter_marks(item) if origin is not None]
    except ValueError:
        return ""  # that is what was told
    words = [f"@pytest.mark.{shown(origin)} as {shown(mark)}" for mark, origin in read]
    return f" (cuda_fork_marker_map reads {', '.join(words)})" if words else ""


def child_env(item: pytest.Item) -> dict[str, str]:
    """Return the variables that the process of a test has beyond those of this process."""
    return dict(marks_of(item).env) | item.stash.get(CHILD_ENV, {})


def _is_theirs(config: pytest.Config, name: str) -> bool:
    """Whether the project, or another plugin, has registered a marker of this name."""
    own = {f"{marker.signature}: {marker.doc}." for marker in MARKERS}
    lines = [line for line in config.getini("markers") if line not in own]
    return any(re.match(rf"{name}\b", line) for line in lines)


def give_gpus(item: pytest.Item, wish: "GpuWish") -> None:
    """Have a test run in a process of its own with GPUs, as if its marker said so."""
    item.stash[_MARKS] = marks_of(item)._replace(isolated=True, gpus=wish)


_NOT_PARAMETRIZED = (
    "@pytest.mark.start_methods makes several tests of one function, which pytest cannot do here "
    "(in a unittest.TestCase, a doctest): mark a plain function or a method of a plain class"
)


def _is_made_for_one(item: pytest.Item) -> bool:
    """Whether a test marked ``start_methods`` was made for one of them."""
    return "start_method" in getattr(getattr(item, "callspec", None), "params", {})


def says_of_captures(item: pytest.Item) -> bool:
    """Whether a marker of a test says that its captures are looked at, or may say so by a map."""
    marked = item.get_closest_marker("check_captures") is not None
    return marked or item.config.stash.get(MAP, None) is not None


def put_marks(item: pytest.Item, marks: Marks) -> None:
    """Have a test run as if its markers said this."""
    item.stash[_MARKS] = marks


def read_marks(item: pytest.Item) -> Marks:
    """Read the closest marker of each name; ``isolated`` may be a marker of the project's own.

    Raises:
        MarkerError: a marker has an argument it does not take, or a value it does not accept.

    """
    closest = _closest_marks(item)
    if not closest:
        return _UNMARKED
    values = {
        marker.name: _keywords(marker, closest[marker.name])
        for marker in MARKERS
        if marker.name in closest and marker.name not in _BY_POSITION
    }
    gpus = _gpus(closest["gpus"]) if "gpus" in closest else None
    methods = _start_methods(closest["start_methods"]) if "start_methods" in closest else ()
    captures = check_captures(closest["check_captures"]) if "check_captures" in closest else None
    given = values.get(ISOLATED, {}).items()
    isolated = {key: value for key, value in given if value is not None}
    check_isolated(isolated, f"@pytest.mark.{ISOLATED}")
    if "gpus" in isolated:
        if gpus is not None:
            said = f"@pytest.mark.{ISOLATED}(gpus={isolated['gpus']!r})"
            raise MarkerError(f"{said} beside @pytest.mark.gpus({gpus.n}): say it once")
        gpus = _wish(isolated["gpus"])
    if gpus is not None and (wrong := against_gpus(isolated.get("env"))):
        raise MarkerError(f"@pytest.mark.{ISOLATED}{wrong}")
    if "spawn_only" in values and isolated.get("method", "spawn") not in ("auto", "spawn"):
        order = list(closest)  # the closest first
        if order.index(ISOLATED) < order.index("spawn_only"):
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
        isolated=ISOLATED in values or gpus is not None or bool(methods),
        method=isolated.get("method", "auto"),
        timeout=isolated.get("timeout"),
        scope=isolated.get("scope"),
        fixtures=isolated.get("fixtures", "own"),
        env=tuple(isolated.get("env", {}).items()),
        fork_ok=fork_ok["reason"] if fork_ok is not None else None,
        gpus=gpus,
        graphs=tuple(values["graph_capture"].get("backends", GRAPH_BACKENDS))
        if "graph_capture" in values
        else (),
        check_captures=captures,
        start_methods=methods,
    )


def _closest_marks(item: pytest.Item) -> "dict[str, Mark]":
    """Return the closest mark of each of our markers, those read from the suite's own included.

    Raises:
        MarkerError: a marker of the suite has arguments that the map does not know.

    """
    closest: dict[str, Mark] = {}
    try:
        for mark, _ in _iter_marks(item):
            if mark.name in _NAMES and not (mark.name == ALIAS and _is_theirs(item.config, ALIAS)):
                closest.setdefault(ISOLATED if mark.name == ALIAS else mark.name, mark)
    except ValueError as error:
        raise MarkerError(str(error)) from None
    return closest


def check_isolated(keywords: Mapping[str, Any], signature: str) -> None:
    """Check the arguments of ``isolated``; those that are None say nothing.

    Args:
        keywords: The arguments.
        signature: How to call what was called, without the arguments ("@isolated").

    Raises:
        MarkerError: One of them is not accepted, or two do not go together.

    """
    for key, value in keywords.items():
        if key not in _ISOLATED_KEYWORDS:
            raise MarkerError(
                f"{signature} does not take {key!r}: write {signature}{_ISOLATED_SIGNATURE}"
            )
        if not accepts(key, value):
            raise MarkerError(f"{signature}({key}={value!r}): {key} is {_ISOLATED_KEYWORDS[key]}")
    if keywords.get("gpus") is not None and (wrong := against_gpus(keywords.get("env"))):
        raise MarkerError(f"{signature}{wrong}")
    if keywords.get("fixtures") == "inherit" and keywords.get("scope", "test") != "test":
        raise MarkerError(
            f"{signature}(fixtures='inherit', scope={keywords['scope']!r}): a process that several "
            "tests share cannot inherit the fixtures of each; leave out one of the two"
        )


def _wish(n: int) -> "GpuWish":
    from pytest_cudafork.settings.gpu_requests import GpuWish

    return GpuWish(n)


def _start_methods(mark: "Mark") -> tuple[str, ...]:
    """Read the marker that takes methods by position; without any it means all."""
    write = "write start_methods('fork', 'forkserver', 'spawn'), or some of these"
    if mark.kwargs:
        raise MarkerError(
            f"@pytest.mark.start_methods does not take {next(iter(mark.kwargs))!r}: {write}"
        )
    for method in mark.args:
        if not (isinstance(method, str) and method in METHODS):
            raise MarkerError(f"@pytest.mark.start_methods: {method!r} is no start method: {write}")
    if len(set(mark.args)) < len(mark.args):
        raise MarkerError(f"@pytest.mark.start_methods names a method twice: {write}")
    return mark.args or METHODS


def check_captures(mark: "Mark") -> bool:
    """Read the marker that takes one truth value by position.

    Raises:
        MarkerError: it was given something else.

    """
    if mark.kwargs or len(mark.args) != 1 or not isinstance(mark.args[0], bool):
        raise MarkerError(
            "@pytest.mark.check_captures takes True or False: write check_captures(False)"
        )
    return mark.args[0]


def _gpus(mark: "Mark") -> "GpuWish":
    """Read the one marker that takes a number."""
    from pytest_cudafork.settings.gpu_requests import read_gpus_mark

    try:
        return read_gpus_mark(mark)
    except ValueError as error:
        raise MarkerError(str(error)) from None


def _keywords(marker: Marker, mark: "Mark") -> dict[str, Any]:
    """Check a mark against its table entry."""
    if mark.args:
        raise MarkerError(
            f"@pytest.mark.{mark.name} takes keywords only, not {mark.args!r}: write "
            f"{marker.signature}"
        )
    for key, value in mark.kwargs.items():
        if key not in marker.keywords:
            raise MarkerError(
                f"@pytest.mark.{mark.name} does not take {key!r}: write {marker.signature}"
            )
        if not accepts(key, value):
            raise MarkerError(
                f"@pytest.mark.{mark.name}({key}={value!r}): {key} is {marker.keywords[key]}"
            )
    return dict(mark.kwargs)
