"""What to do about a touch: from the shape of the culprit line to sentences for its owner."""

from __future__ import annotations

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.observe.story.paths import location
from pytest_cudafork.observe.story.scopes import Scope, Statement, statement_of, statement_text
from pytest_cudafork.observe.story.touch import Frame, Touch

_LAZY = "make it lazy: a function (functools.cache keeps it cheap) that is called on first use"
_NVML = (
    "only asking about GPUs? torch.cuda.device_count() and NVML (pynvml) answer without "
    "initializing the driver; torch.cuda.is_available() does so with "
    "PYTORCH_NVML_BASED_CUDA_CHECK=1"
)
_SKIP = (
    "the condition of skipif is evaluated at import: ask torch.cuda.device_count() == 0, or mark "
    "the test @pytest.mark.gpus(1) instead, which skips it where there is no GPU"
)
_SPAWN = (
    "or start the children with a fresh interpreter: "
    'multiprocessing.get_context("spawn") or "forkserver"'
)
_ELSEWHERE = (
    "mark the test @pytest.mark.cuda_isolated(), or do the CUDA part in a child with run_spawned"
)
_FORK_SERVER = (
    "multiprocessing's fork server has imported it, and all its children inherit that: keep it out "
    "of what is preloaded (set_forkserver_preload; without it, the main module), or use "
    'multiprocessing.get_context("spawn")'
)


def what_the_line_is(touch: Touch) -> str:
    """Say in words what kind of code the culprit is, and when it runs."""
    culprit = touch.culprit
    if culprit is None:
        return "no Python stack could be had"
    if not touch.at_import:
        return f"in {culprit.name}" if culprit.name != "<module>" else "script"
    statement, name = _statement(culprit)
    if statement is Statement.DEFAULT:
        return f"default argument of {name}(), evaluated when its def runs, at import"
    if statement is Statement.DECORATOR:
        return f"decorator of {name}, runs at import"
    if culprit.scope is Scope.CLASS:
        what = "annotation in the class body" if statement is Statement.ANNOTATION else "class body"
        return f"{what} of {culprit.name.rpartition('.')[2]}, evaluated at import"
    if statement is Statement.IMPORT:
        inner = touch.frames[: touch.frames.index(culprit)]
        if all(frame.is_import_machinery for frame in inner):
            return f"import of {name}, whose initialization in native code touches CUDA"
        return f"import of {name}, on whose way CUDA is touched"
    if statement is Statement.ASSIGNMENT and name:
        return f"module constant {name}, evaluated at import"
    return "module body, runs at import"


def _statement(frame: Frame) -> tuple[Statement, str]:
    return statement_of(frame.filename, frame.lineno, frame.scope, frame.name)


def _text(frame: Frame) -> str:
    return statement_text(frame.filename, frame.lineno, frame.scope, frame.name)[1]


def kind_of_line(touch: Touch) -> str:
    """Say what kind of code the culprit is, in a word or two: "class body", "in probe"."""
    return what_the_line_is(touch).partition(",")[0].partition(" of ")[0]


def advise(touch: Touch, own: str = "", *, forks: bool = True) -> list[str]:
    """Return what to do, most useful first; at most four sentences without final full stops.

    Args:
        touch: The touch.
        own: An installed package that is the reader's own; so is all code that is not installed.
        forks: Whether forks after it are what is wrong; else it is the touch itself, and how
            children are started mends nothing.

    """
    culprit = touch.culprit
    if culprit is None:
        return [_SPAWN[3:] if forks else _without_forks(touch, culprit)]
    if touch.at_import:
        child = "the child, after the fork" if forks else "a child"
        advice = _import_time_advice(touch, culprit, ("", own), child)
    else:
        advice = _call_advice(culprit) if forks else [_without_forks(touch, culprit)]
    if _asks_only(touch):
        advice.append(_NVML)
    if forks:
        advice.append(_FORK_SERVER if _is_preloaded(touch) else _SPAWN)
    return advice


def _is_preloaded(touch: Touch) -> bool:
    """Whether a fork server of multiprocessing has touched, before it forked anything."""
    server = {
        frame.name
        for frame in touch.frames
        if frame.filename.replace("\\", "/").endswith("multiprocessing/forkserver.py")
    }
    return "main" in server and "_serve_one" not in server


def _import_time_advice(
    touch: Touch, culprit: Frame, own: tuple[str, str], child: str
) -> list[str]:
    advice = []
    importer = _nearest_own(touch.import_chain, own)
    if culprit.package in own:
        advice.append(_own_line_advice(culprit))
    elif importer is not None:
        where = location(importer)
        what = _imported_at(importer) or culprit.package
        if importer.is_body:
            move = "move it into the function that needs it, and call that in the child"
        else:
            move = f"let {importer.name} run in {child}"
        advice.append(f"the import of {what} at {where} touches CUDA: {move}")
    for frame in reversed(touch.import_chain[:-1]):
        if _reexports(frame, own):
            advice.append(
                f"{location(frame)} re-exports a module that initializes the "
                "driver: leave that import out and import the leaf module where it is used"
            )
            break
    return advice


def _imported_at(importer: Frame) -> str:
    """The module that an import statement names; "" where the line is no import statement."""
    statement, name = _statement(importer)
    return name if statement is Statement.IMPORT else ""


def _reexports(frame: Frame, own: tuple[str, str]) -> bool:
    """Whether the importer is an ``__init__`` of the user's own: nobody edits another's."""
    return (
        frame.package in own and frame.is_body and os.path.basename(frame.filename) == "__init__.py"
    )


def _own_line_advice(culprit: Frame) -> str:
    statement, name = _statement(culprit)
    if "skipif(" in _text(culprit):
        return _SKIP
    if statement is Statement.DEFAULT:
        return f"default to None and compute the value inside {name}()"
    if statement is Statement.DECORATOR:
        return f"apply the decorator of {name} on first use, or make its arguments lazy"
    if statement is Statement.ANNOTATION:
        return "quote the annotation, or add 'from __future__ import annotations'"
    if statement is Statement.IMPORT:
        return f"import {name} inside the function that needs it"
    if culprit.scope is Scope.CLASS:
        return f"the class body is evaluated at import; {_LAZY}"
    if statement is Statement.ASSIGNMENT and name:
        return f"{name} is evaluated at import; {_LAZY}"
    return f"the line runs at import; {_LAZY}"


def _call_advice(culprit: Frame) -> list[str]:
    name = os.path.basename(culprit.filename)
    if name == "conftest.py" or name.startswith("test_") or name.endswith("_test.py"):
        return [f"a test or fixture that needs CUDA in this process: {_ELSEWHERE}"]
    if culprit.name == "<module>":
        return ["move the line into a function, and call that in the child, after the fork"]
    if culprit.name.rpartition(".")[2].startswith("<"):  # a lambda or comprehension
        return ["let the code of this line run in the child, after the fork"]
    return [f"call {culprit.name} in the child, after the fork"]


def _without_forks(touch: Touch, culprit: Frame | None) -> str:
    """Say where a touch does no harm, of one that is not at import."""
    if touch.test:
        return _ELSEWHERE
    what = f"call {culprit.name}" if culprit is not None else "touch CUDA"
    return f"{what} in a child with a fresh interpreter, or not before a test needs it"


def _asks_only(touch: Touch) -> bool:
    """Whether the touch was a question about GPUs, which NVML could have answered."""
    questions = ("is_available", "get_device_capability", "get_device_properties", "device_count")
    names = {frame.name.rpartition(".")[2] for frame in touch.frames[:12]}
    return any(question in names or question in touch.entry for question in questions)


def _nearest_own(chain: tuple[Frame, ...], own: tuple[str, str]) -> Frame | None:
    """The innermost importer that is the reader's own."""
    return next((frame for frame in reversed(chain[:-1]) if frame.package in own), None)
