"""The fork guard: it refuses a fork while CUDA is initialized, before the fork happens.

It stands in for ``os.fork`` and ``os.forkpty``, in ``os`` and in every module that has imported
them, under whatever name. That covers ``multiprocessing`` with fork, ``pty`` and ``DataLoader``
workers, which all end there. What goes on to ``exec``, which makes a clean process, is left alone:
``subprocess``, and those that start programs by ``os.fork``.

An audit hook would see the same forks, but it runs for every audited attribute access, which made a
suite of small tests 4 % slower, and it could not be taken back.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.errors import CudaForkError
from pytest_cudafork.observe.base.hooking import Around, hook, namespace_of
from pytest_cudafork.observe.base.stacks import outward, stack_of
from pytest_cudafork.observe.base.undo import UndoStack
from pytest_cudafork.observe.driver.lineage import process_lineage
from pytest_cudafork.observe.driver.probe import CudaState, Verdict
from pytest_cudafork.settings import environment

if TYPE_CHECKING:
    from pytest_cudafork.observe.story.stories import History

DEFAULT_ALLOW = ("torch.utils.data",)
"""Modules whose forks are watched and not refused, also while CUDA is initialized."""

_START_PROGRAMS = (
    *(("os", "_spawnvef"), ("pty", "spawn")),
    ("ptyprocess.ptyprocess", "spawn"),  # of pexpect, terminado, Jupyter's terminals
    ("loky.backend.fork_exec", "fork_exec"),  # before 3.5
    ("joblib.externals.loky.backend.fork_exec", "fork_exec"),  # before 1.5
    ("gevent.subprocess", "_execute_child"),
    ("twisted.internet.process", "_fork"),
    *(("sh", "__init__"), ("invoke.runners", "start")),
)
"""Modules with their functions that fork for the sake of the ``exec`` that follows."""

_FORK_FOR_OTHERS = (("pty", "fork"), ("gevent.os", "fork_and_watch"))
"""Modules with their functions that fork for whoever calls them."""

_EXEC = frozenset(f"exec{kind}" for kind in ("v", "ve", "vp", "vpe", "l", "le", "lp", "lpe"))
"""The functions of ``os`` that run a program in the place of the calling one."""

_APIS = ("fork", "forkpty")
_OS = sys.modules["os"]
"""The module itself, of which ``compat.unpatched`` has a copy."""


class ForkDecision(enum.Enum):
    """What became of a fork that was about to happen."""

    GUARDED = "guarded"  # refused
    ALLOWED = "allowed"  # by marker or by the list of modules
    ACCEPTED = "accepted"  # by the baseline
    WATCHED = "watched"  # the level does not refuse forks
    UNGUARDED = "unguarded"  # to be refused, and made past the guard
    UNKNOWN = "unknown"  # whether CUDA is initialized is not observable
    CLEAN = "clean"  # harmless; only a detailed watch writes it


class Watched(Protocol):
    """What the guard needs of the observer."""

    simulated: bool

    def state(self) -> CudaState:
        """CUDA in this process, now."""

    def settle(self) -> None:
        """Wait until what ``state`` has shown is in the ledger."""

    def note_fork(
        self, *, api: str, verdict: str, rule: str, state: CudaState, frame: FrameType | None
    ) -> str:
        """Write the fork into the ledger and remember it for the child; return its id."""

    def history(self) -> History:
        """The ledger so far."""


def install(rules: Rules) -> UndoStack:
    """Guard this process, and by inheritance all its descendants; calling the result ends it."""
    undo = UndoStack()
    guarded: list[tuple[object, object]] = []
    for name in _APIS:
        original = getattr(_OS, name, None)
        if original is None:
            continue
        hook(undo, _OS, name, _around(f"os.{name}", rules))
        guarded.append((original, getattr(_OS, name)))
    _rename(guarded)
    # Taken back in all modules, those too that were imported in the meantime.
    undo.add(functools.partial(_rename, [(new, old) for old, new in guarded]))
    lineage = process_lineage()
    former = lineage.on_unguarded_fork
    lineage.on_unguarded_fork = functools.partial(_note_unguarded, rules)
    undo.add(lambda: setattr(lineage, "on_unguarded_fork", former))
    return undo


def _note_unguarded(rules: Rules, frame: FrameType) -> bool:
    """Write a fork that is about to be made through a reference that the guard does not know.

    Raising here would not keep it from happening.

    Returns:
        Whether it is none of these: its child goes on to exec, and nothing was written.

    """
    if goes_on_to_exec(frame):
        return True
    state = rules.observer.state()
    verdict, rule = rules.decide(state, frame)
    if verdict is ForkDecision.GUARDED:
        verdict = ForkDecision.UNGUARDED
    rules.observer.note_fork(
        api="os.fork", verdict=verdict.value, rule=rule, state=state, frame=frame
    )
    return False


def goes_on_to_exec(frame: FrameType) -> bool:
    """Whether a fork that the guard has not refused starts a program.

    ``subprocess`` runs at-fork handlers for the sake of ``preexec_fn``, and so does uvloop, whose
    compiled code has no frames: where its loop runs, a fork that ``os.fork`` does not make is taken
    for one that starts a program.
    """
    if frame.f_globals.get("__name__") == "subprocess" or starts_program(frame):
        return True
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or "uvloop" not in sys.modules:
        return False
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # there is none
        return False
    return type(loop).__module__.partition(".")[0] == "uvloop"


def starts_program(frame: FrameType | None) -> bool:
    """Whether a fork by ``os.fork`` or ``os.forkpty`` is that of a function for programs."""
    return any(_place(each) in _START_PROGRAMS for each in _forking(frame))


def names_exec(frame: FrameType | None) -> str:
    """Return the name of the function that forks if it calls ``os.exec*`` as well, or "".

    Whether its child comes to that is not known: what it does before is watched as ever.
    """
    *_, function = (None, *_forking(frame))
    if function is None or _EXEC.isdisjoint(function.f_code.co_names):
        return ""
    name = function.f_code.co_name
    return "the module" if name == "<module>" else name


def _forking(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield who forks, from the inside to the first that does not do so for its own caller."""
    for each in outward(frame):
        yield each
        place = _place(each)
        # What these functions call in their turn may fork otherwise: pty.spawn takes callables.
        if place not in _FORK_FOR_OTHERS and not str(place[0]).startswith("pytest_cudafork."):
            return


def _place(frame: FrameType) -> tuple[object, str]:
    return frame.f_globals.get("__name__"), frame.f_code.co_name


def _rename(pairs: Sequence[tuple[object, object]]) -> None:
    """Put the new of each pair in the place of the old in every module, under whatever name."""
    # Compared by identity: equality runs code of whatever the modules hold.
    new_of = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        namespace = namespace_of(module)
        if new_of.keys().isdisjoint(map(id, list(namespace.values()))):
            continue  # as nearly all do; there are thousands
        for alias, value in list(namespace.items()):
            if id(value) in new_of:
                namespace[alias] = new_of[id(value)]


def _around(api: str, rules: Rules) -> Around:
    def around(
        proceed: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: FrameType | None,
    ) -> Any:
        __tracebackhide__ = True
        _before_fork(api, caller, rules)
        return proceed(*args, **kwargs)

    return around


def _before_fork(api: str, frame: FrameType | None, rules: Rules) -> None:
    """Decide about one fork.

    Raises:
        CudaForkError: CUDA is initialized here, the level refuses forks, and nothing allows it.

    """
    __tracebackhide__ = True
    observer = rules.observer
    state = observer.state()
    if state.verdict is Verdict.CLEAN:
        if rules.detailed:
            clean = ForkDecision.CLEAN.value
            observer.note_fork(api=api, verdict=clean, rule="", state=state, frame=frame)
        return
    if starts_program(frame):
        return
    verdict, rule = rules.decide(state, frame)
    fork = observer.note_fork(api=api, verdict=verdict.value, rule=rule, state=state, frame=frame)
    if verdict is ForkDecision.GUARDED:
        raise rules.error(_story(observer, api, state, frame), fork)


def _plain_error(story: str, fork: str) -> CudaForkError:
    return CudaForkError(story)


def _nothing_accepted() -> str:
    return ""


class Rules(NamedTuple):
    """What is refused: nothing (``refuse`` is False), or forks outside the modules in ``allow``.

    ``error`` makes what is raised, of a story and of the id of the fork's record. ``accepted`` says
    what in the baseline accepts a fork of this process, "" if nothing does. With
    ``detailed`` forks of a clean process are written as well.
    """

    observer: Watched
    refuse: bool
    allow: tuple[str, ...] = DEFAULT_ALLOW
    error: Callable[[str, str], CudaForkError] = _plain_error
    accepted: Callable[[], str] = _nothing_accepted
    detailed: bool = False

    def decide(self, state: CudaState, frame: FrameType | None) -> tuple[ForkDecision, str]:
        """Decide about a fork in a process that is not clean; the text is the rule that applied."""
        if state.verdict is Verdict.NOT_OBSERVABLE:
            return ForkDecision.UNKNOWN, state.why
        if not self.refuse:
            return ForkDecision.WATCHED, "level poison"
        if environment.is_set(environment.FORK_OK):
            reason = environment.value(environment.FORK_OK)
            return ForkDecision.ALLOWED, f"marker cuda_fork_ok: {reason}"
        module = allowed_module(frame, self.allow)
        if module:
            return ForkDecision.ALLOWED, f"code of {module} may fork"
        function = names_exec(frame)
        if function:
            return ForkDecision.ALLOWED, f"{function} goes on to exec"
        self.observer.settle()  # what accepts it, and its story, go by the line that touched
        accepted = self.accepted()
        if accepted:
            return ForkDecision.ACCEPTED, accepted
        return ForkDecision.GUARDED, ""


def _story(observer: Watched, api: str, state: CudaState, frame: FrameType | None) -> str:
    from pytest_cudafork.observe.story.stories import Within, fork_story
    from pytest_cudafork.observe.story.touch import frames_from

    test, phase = environment.value(environment.TEST), environment.value(environment.PHASE)
    return fork_story(
        observer.history(),
        os.getpid(),
        api,
        frames_from(stack_of(frame)),
        why=state.why,
        simulated=observer.simulated,
        within=Within.of(test, phase),
        during=test or phase,
    )


def allowed_module(frame: FrameType | None, allow: tuple[str, ...]) -> str:
    """Return the module on the stack that is allowed to fork, or ""."""
    for each in outward(frame):
        name = each.f_globals.get("__name__", "")
        for prefix in allow:
            # Code run by exec may call its module anything.
            if name == prefix or str(name).startswith(f"{prefix}."):
                return prefix
    return ""
