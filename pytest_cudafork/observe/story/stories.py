"""Whole stories out of the ledger: of a fork that was refused, of a child that was poisoned.

The first line of each names the culprit: it is all that a short summary shows. A story whose
culprit has been told in full is told in short, and says where the rest is.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from pytest_cudafork.observe.base.other_hosts import process_words
from pytest_cudafork.observe.base.records import Record
from pytest_cudafork.observe.story.images import NOW, Image, Images, moment_of
from pytest_cudafork.observe.story.paths import short_path
from pytest_cudafork.observe.story.touch import Frame, Touch, frames_from
from pytest_cudafork.observe.story.words import (
    fork_line,
    headline,
    indent,
    initialized_at,
    nobodys_line,
    own_lines,
    place_of,
    touch_lines,
)
from pytest_cudafork.settings import environment

ENDS = ("<module>", "_run_module_as_main")
"""The outermost function of a process: whatever leaves it ends the process."""
_MOST_LATER = 3
_UNGUARDED = [
    "",
    "It could not be refused. Either it was made through a reference to os.fork that was kept "
    "before the plugin came (in a class, a default argument): load the plugin earlier "
    "(-p cudafork). Or a handler of os.register_at_fork has initialized CUDA on its way.",
]
_MARKED = ["", "The marker cuda_fork_ok allows forks, and no touch."]


class Within(enum.Enum):
    """What a fork was made in, which says how it can be allowed."""

    TEST = "mark the test @pytest.mark.cuda_fork_ok(reason='...')"
    SESSION = "allow the module that forks: --cuda-fork-allow=MODULE"
    PROGRAM = "allow the module that forks: --allow MODULE"

    @classmethod
    def of(cls, test: str, phase: str) -> Within:
        """Return it by a record's ``test`` and ``phase``."""
        if phase == environment.PROGRAM:
            return cls.PROGRAM
        return cls.TEST if test else cls.SESSION


class History:
    """The ledger's records, with the questions that stories ask of them.

    It grows with the ledger: to make it anew for each refused fork would take the longer the more
    were refused. Another thread may read it meanwhile.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = []
        self.touches: list[Touch] = []
        self.told: dict[str, str] = {}
        """The culprits that a failure has told in full, and the test that failed, at first."""
        self._images = Images()
        self._forks: dict[str, Record] = {}
        self._caught: dict[str, Record] = {}
        self._clean_pids: set[str] = set()
        """The processes that have touched CUDA and were not poisoned."""
        self._likely_parents: dict[int, tuple[str, str]] = {}
        """Of each poisoned process: its parent when it first wrote, and the pytest process."""
        self.add(records)

    def add(self, records: Iterable[Record]) -> None:
        """Take in what was written since, in the ledger's order."""
        for record in records:
            self.records.append(record)
            self._images.add(record)
            kind = record["k"]
            if kind == "touch":
                touch = Touch.from_record(record)
                self.touches.append(touch)
                if not touch.poisoned:
                    self._clean_pids.add(str(touch.pid))
            elif kind == "fork":
                self._forks[str(record["id"])] = record
            elif kind == "caught":
                self._caught[str(record.get("fork"))] = record
            elif kind == "told":
                self.told.setdefault(str(record.get("culprit")), str(record.get("at")))
            if record.get("poisoned") or record.get("state") == "poisoned":
                likely = str(record.get("ppid")), str(record.get("owner"))
                self._likely_parents.setdefault(int(record["pid"]), likely)

    def image_of(self, pid: int, moment: float = NOW) -> Image:
        """What a process was running at a moment."""
        return self._images.of(pid, moment)

    def ancestors(self, pid: int, moment: float = NOW) -> list[int]:
        """``pid`` and the initialized processes it descends from by fork, nearest first."""
        return [image.pid for image in self._descent(pid, moment)]

    def _descent(self, pid: int, moment: float) -> list[Image]:
        """What a process was running at a moment, and what it descends from by fork since."""
        images = [self.image_of(pid, moment)]
        while True:
            image = images[-1]
            if image.child is not None:
                fork = self._forks.get(str(image.child.get("fork")), image.child)
                parent, moment = int(image.child.get("parent") or 0), moment_of(fork)
            elif image.by_exec:  # it inherits nothing
                return images
            else:
                parent = self._native_parent(image.pid)
            if not parent or parent in {one.pid for one in images}:
                return images
            images.append(self.image_of(parent, moment))

    def _native_parent(self, pid: int) -> int:
        """The parent of a poisoned process that native code has forked; 0 if nobody knows it.

        Such a fork leaves no record. The parent may have ended before its child wrote anything;
        then it was most likely the pytest process.
        """
        likely = self._likely_parents.get(pid, ())
        return next((int(each) for each in likely if each in self._clean_pids), 0)

    def initializer(self, pid: int, moment: float = NOW) -> Touch | None:
        """The touch that first initialized this process or, failing that, its nearest ancestor.

        Of what the process was running at that moment: an ``exec`` begins anew.
        """
        return self._first_touch(self._descent(pid, moment))

    def _first_touch(self, images: Iterable[Image]) -> Touch | None:
        for image in images:
            for touch in self.touches:
                if image.holds(touch.pid, touch.time_ns) and not touch.poisoned:
                    return touch
        return None

    def later_touches(self, first: Touch, pid: int, moment: float = NOW) -> list[Touch]:
        """The touches of what a process was running at a moment that came after another one."""
        image = self.image_of(pid, moment)
        return [
            touch
            for touch in self.touches
            if image.holds(touch.pid, touch.time_ns) and touch.time_ns > first.time_ns
        ]

    def poisoner(self, touch: Touch) -> Touch | None:
        """The touch that had initialized the process from which the toucher was forked."""
        found = self._first_touch(self._descent(touch.pid, touch.time_ns)[1:])
        if found is not None:
            return found
        # Forked by native code, and the parent is not known: the session's first earlier touch.
        before = [t for t in self.touches if t.time_ns < touch.time_ns and not t.poisoned]
        return next((t for t in before if t.owner == touch.owner and t.pid != touch.pid), None)

    def fork_of(self, pid: int, moment: float = NOW) -> tuple[Frame, ...]:
        """The stack of the recorded fork that made ``pid``; () if it was not recorded."""
        child = self.image_of(pid, moment).child
        fork = self._forks.get(str(child.get("fork"))) if child else None
        return frames_from(fork.get("stack", ())) if fork else ()

    def fork(self, fork_id: str) -> Record | None:
        """The record of a fork; None if there is none."""
        return self._forks.get(fork_id)

    def caught(self, fork_id: str) -> Record | None:
        """Where the error of a refused fork was caught; None if it was not seen to be."""
        return self._caught.get(fork_id)

    def is_printed(self, fork_id: str, file: str) -> bool:
        """Whether Python has printed that error, and with it the story, into this file."""
        return (self.caught(fork_id) or {}).get("printed") == file


def poisoned_processes(history: History) -> set[int]:
    """Return the processes that were forked from an initialized one, as far as they are known.

    Those that were forked to start a program are left out: it begins anew.
    """
    children = (record for record in history.records if record["k"] == "child")
    told = {int(record["pid"]) for record in children if not record.get("program")}
    return told | {touch.pid for touch in history.touches if touch.poisoned}


def _stand_in(simulated: bool) -> str:
    return " No GPU here: the phantom driver stands in for one." if simulated else ""


def fork_story(
    history: History,
    pid: int,
    api: str,
    frames: Sequence[Frame],
    *,
    why: str,
    simulated: bool = False,
    fork_id: str = "",
    told_at: str = "",
    refused: bool = True,
    within: Within = Within.TEST,
    during: str = "",
    moment: float = NOW,
) -> str:
    """Tell why a fork is refused: who initialized, who forks, who touched afterwards.

    Args:
        history: the ledger so far.
        pid: the process that is about to fork.
        api: the call, such as ``os.fork``.
        frames: its stack.
        why: how it is known that CUDA is not clean here.
        simulated: the driver is the phantom.
        fork_id: the id of the fork's record, to tell where its error was swallowed; "" if it is
            the error that is shown.
        told_at: the test at which the touch has been told in full; "" tells it in full here.
        refused: whether it was; else it was made past the guard.
        within: what it was made in.
        during: the test and phase, or what else the session did.
        moment: when that was, as the ledger's ``t``.

    """
    first = history.initializer(pid, moment)
    what = "fork refused" if refused else "fork past the guard"
    top = f"{what} at {place_of(frames)}: {initialized_at(first)}"
    forks_at = ["", f"{api} was called by", *indent(_forker_lines(frames, during))]
    end = [
        *([] if refused else _UNGUARDED),
        *_swallowed_lines(history, fork_id, within),
        "",
        f"If this fork is right as it is (the child never uses CUDA), {within.value}.",
    ]
    if told_at and first is not None:
        return "\n".join([top, "", *_as_above(first, told_at), *forks_at, *end])
    own = first is None or first.pid == pid
    how = "has initialized CUDA" if own else "was forked from one that had initialized CUDA"
    lines = [
        top,
        "",
        f"{what}: this process {how}, so a child forked from it can never use "
        f'CUDA ("Cannot re-initialize CUDA in forked subprocess").{_stand_in(simulated)}',
        "",
        "CUDA was initialized by",
    ]
    if first is None:
        lines.append(f"    something that was not seen ({why})")
    else:
        lines.extend(indent(touch_lines(first)))
    return "\n".join([*lines, *forks_at, *_later_lines(history, pid, first, moment), *end])


def _forker_lines(frames: Sequence[Frame], during: str) -> list[str]:
    """The line that forks; where it is pytest's own, when that was says more."""
    nobodys = nobodys_line(frames)
    when = [f"in {during}"] if nobodys and during else []
    return [fork_line(frames), *nobodys, *when]


def _later_lines(history: History, pid: int, first: Touch | None, moment: float) -> list[str]:
    """Where the process has touched again after its first touch."""
    later = history.later_touches(first, pid, moment) if first is not None else []
    if not later:
        return []
    lines = ["", "touched again since:", *indent(headline(t) for t in later[:_MOST_LATER])]
    if len(later) > _MOST_LATER:
        lines.append(f"    ... and {len(later) - _MOST_LATER} more")
    return lines


def _as_above(touch: Touch, told_at: str) -> list[str]:
    """Tell a touch in short, and where its line was told in full: that may be of another touch."""
    told_there = touch.test.rpartition(" (")[0] == told_at
    return [
        "CUDA was initialized by",
        f"    {headline(touch)}",
        *indent([] if told_there else own_lines(touch)),
        f"    as above: told in full at {told_at}",
    ]


def _swallowed_lines(history: History, fork_id: str, within: Within) -> list[str]:
    """Where the error of a refused fork ended, if that was not the failure that is told."""
    caught = history.caught(fork_id)
    if caught is None or caught.get("by_name"):
        return []
    line, function = int(caught.get("line") or 0), str(caught.get("function"))
    filename = str(caught.get("filename"))
    if filename.replace("\\", "/").endswith("_pytest/runner.py"):
        return []  # pytest has made the failure of it
    if function.endswith("_bootstrap_inner"):
        words = ["the error ended the thread that forked"]
    elif line:
        frame = Frame(filename, line, function)
        words = ["the error was caught, without its name, by", *indent([fork_line([frame])])]
    elif function in ENDS:
        words = [f"the error ended the process ({short_path(filename)})"]
    else:
        words = [f"the error was lost in {function} ({short_path(filename)})"]
    by_name = "" if within is Within.PROGRAM else "pytest.raises(CudaForkError), or "
    return [
        "",
        *words,
        f"A refusal that is expected is caught by its name: {by_name}except CudaForkError.",
    ]


def poison_story(
    history: History, touch: Touch, *, simulated: bool = False, told_at: str = ""
) -> str:
    """Tell how a forked child came to touch CUDA: who initialized, who forked, who touched.

    ``told_at`` is the test at which what initialized CUDA has been told in full.
    """
    poisoner = history.poisoner(touch)
    at = place_of(touch.frames)
    lines = [
        f"a forked child touched CUDA at {at}: {initialized_at(poisoner)}, before the fork",
        "",
        f"{process_words(touch.pid)} was forked from an initialized process and touched CUDA, "
        "which it can never use: on a GPU the first call that needs it ends with "
        f'"Cannot re-initialize CUDA in forked subprocess".{_stand_in(simulated)}',
        "",
    ]
    if poisoner is not None and told_at:
        lines.extend(_as_above(poisoner, told_at))
    elif poisoner is None:
        lines.append("CUDA was initialized in the parent by\n    something that was not seen")
    else:
        lines.extend(["CUDA was initialized in the parent by", *indent(touch_lines(poisoner))])
    frames = history.fork_of(touch.pid, touch.time_ns)
    lines.extend(["", "the child was forked by"])
    lines.extend(indent([fork_line(frames) if frames else "a fork that was not seen"]))
    lines.extend(["", "the child touched CUDA at", *indent(touch_lines(touch, advice=False))])
    return "\n".join(lines)


def touch_story(touch: Touch, *, told_at: str = "", may_fork: bool = False) -> str:
    """Tell a touch that level ``touch`` does not allow, in short if it was told at ``told_at``.

    ``may_fork`` says that the marker ``cuda_fork_ok`` was in force.
    """
    top = f"no touch is allowed here: {initialized_at(touch)}"
    marked = _MARKED if may_fork else []
    if told_at:
        return "\n".join([top, "", *_as_above(touch, told_at), *marked])
    lines = [
        top,
        "",
        "CUDA was initialized in the pytest process; every process forked from it from now on "
        "cannot use CUDA.",
        "",
        *touch_lines(touch, forks=False),
        *marked,
        *_accepting(touch),
    ]
    return "\n".join(lines)


def _accepting(touch: Touch) -> list[str]:
    """How a touch is accepted: by a baseline, which knows it by its line."""
    if touch.culprit is None or touch.culprit.is_generated:
        return []
    return [
        "",
        "If this touch is right as it is, accept its line: --cuda-fork-baseline=FILE "
        "--cuda-fork-baseline-update.",
    ]
