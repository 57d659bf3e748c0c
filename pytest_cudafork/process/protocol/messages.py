"""The messages that processes of this package send each other, one class for each kind.

Both ends import them. A message travels as plain data in a frame (``frames.py``) and is looked at
field by field when it arrives: what was sent by a child in which user code has run may be anything,
and a value of the wrong type would end the session somewhere far from here. The types of the fields
are the check: a value must be an instance of what its annotation says.

There are three conversations: a child with the process that waits for it (about a test, or about a
call), and a fork server with the process that started it.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from pytest_cudafork.process.protocol import frames
from pytest_cudafork.process.protocol.message_kinds import KINDS as KINDS
from pytest_cudafork.process.protocol.message_kinds import Message as Message
from pytest_cudafork.process.protocol.message_kinds import checked
from pytest_cudafork.process.protocol.message_kinds import of_kind as of_kind

MOST_FDS = 4
"""How many descriptors come with a message between a child and the process that waits for it."""

# -- what a child is told --------------------------------------------------------------------------


class Descriptor(str, enum.Enum):
    """What a descriptor is that comes with a ``Job``."""

    REQUEST = "request"
    """A memory file with the data of the job and the world around it (``launch.request_file``)."""
    STDOUT = "stdout"
    STDERR = "stderr"


@of_kind("job")
class Job(Message):
    """What a child that was forked ahead is to do; descriptors come with it.

    Attributes:
        entry: The function that does it, "package.module:function".
        descriptors: What the descriptors are that come with this message, in their order (the
            values of ``Descriptor``).

    """

    entry: str
    descriptors: list[str]


@of_kind("run")
class Run(Message):
    """Run one test.

    Attributes:
        test: What finds it in another session (``item_names.name_of``).
        next: Likewise the test that this process will run next, or None.
        surroundings: Environment, directory, umask and arguments (``child.surroundings``).
        position: Where on its line the terminal stands (``live_text.position_of``).
        reruns: What pytest-rerunfailures has counted so far.
        ahead: What finds the tests after ``next`` that the child goes on to by itself; None in
            place of the last where no other follows. The last one is not run by itself.
        signs: What the reports of all of these say of their test (``passed_phases.sign_of``).
        inherits: None for the whole test. Else its body alone is run: b"" where its fixtures were
            set up before this process was forked, or the values of the fixtures, pickled.
        earlier: What is remembered of the tests before, for each of these
            (``earlier_tests.pack``); None: nothing.

    """

    test: Any
    next: Any
    surroundings: dict[str, Any]
    position: Any
    reruns: Any
    inherits: bytes | None = None
    ahead: list[Any] | None = None
    signs: list[Any] | None = None
    earlier: list[Any] | None = None


@of_kind("end")
class End(Message):
    """There are no more tests: tear down what is set up, and leave."""


@of_kind("shown")
class Shown(Message):
    """The message that asked to be waited for has been shown on the terminal.

    ``position`` is where the terminal stands, if that was asked; the other fields are the
    session's, now that it has heard of the message.
    """

    position: Any = None
    shouldstop: bool | str = False
    shouldfail: bool | str = False


# -- what a child says of a test -------------------------------------------------------------------


@of_kind("capture")
class CaptureFiles(Message):
    """The descriptors that come with this hold what is lost with the process otherwise.

    First the output that is read already (``captured_output.Kept``) and the phases that are told
    later (``passed_phases.PassedPhases``); then, where pytest captures into files, standard output
    and error. ``files`` says how many there are: the kernel hands over none for which the parent
    has no descriptor left.
    """

    files: int = 0


@of_kind("report")
class Report(Message):
    """A report of pytest, as ``ReportPacker.pack`` makes it.

    What it holds is looked at where it becomes a report again.
    """

    data: Any
    wait: bool = False
    """Whether the child waits until it is shown."""


@of_kind("warning")
class CaughtWarning(Message):
    """A warning, as ``caught_warnings.pack`` makes it."""

    pickled: bytes | None
    type: str
    text: str
    filename: str
    lineno: int
    line: str | None


@of_kind("terminal")
class TerminalText(Message):
    """Text that the test wrote to the terminal, and what the terminal then stands after."""

    text: str
    at: Any
    wait: bool


@of_kind("where")
class AsksPosition(Message):
    """Where does the terminal stand? The answer is ``Shown``."""

    wait: bool = True


@of_kind("passed")
class Passed(Message):
    """Phases have passed, and nothing is to be said of them but their times."""

    phases: bytes


@of_kind("coverage")
class Coverage(Message):
    """What coverage has measured in the child (``coverage_data.ChildCoverage.take``)."""

    data: Any


@of_kind("again")
class RunsAgain(Message):
    """A plugin runs the test once more."""


@of_kind("phase")
class PhaseBegins(Message):
    """Which phase comes next, of a test whose reports come when it is over."""

    phase: str


@of_kind("stop")
class SessionStop(Message):
    """The test called ``pytest.exit``."""

    reason: str
    returncode: int | None


@of_kind("interrupt")
class Interrupt(Message):
    """The test raised KeyboardInterrupt, with this text, in a line of a file."""

    text: str = ""
    path: str = ""
    line: int = 0


@of_kind("internal")
class InternalError(Message):
    """pytest or a plugin failed, outside any test's report."""

    text: str


@of_kind("timeout")
class TimedOut(Message):
    """pytest-timeout's limit was exceeded; ``stacks`` are those of the test's threads."""

    text: str
    stacks: str


@of_kind("missing")
class TestMissing(Message):
    """The test is not there: which tests are, and what went wrong in their collection."""

    __test__: ClassVar[bool] = False  # no test class, whatever pytest thinks of its name
    found: list[str]
    errors: list[str]


@of_kind("over")
class TestOver(Message):
    """The test is over.

    ``last`` says that this process will run no other, ``ahead`` that it has gone on to the next;
    ``passed`` is as in ``Passed``; the other fields are the session's.
    """

    __test__: ClassVar[bool] = False
    last: bool
    shouldstop: bool | str = False
    shouldfail: bool | str = False
    ahead: bool = False
    passed: bytes = b""


@of_kind("done")
class Done(Message):
    """Nothing is left that could fail: this process only has to end."""


# -- what a child says of a call -------------------------------------------------------------------


@of_kind("warnings")
class CaughtWarnings(Message):
    """The warnings of the call, each as the fields of a ``CaughtWarning``."""

    warnings: list[Any]

    def __post_init__(self) -> None:
        """Look at each of them."""
        for one in self.warnings:
            if not isinstance(one, dict):
                raise TypeError(f"warnings is {one!r:.200}")
            checked(CaughtWarning, one)

    def each(self) -> list[CaughtWarning]:
        """Return them as messages of their own."""
        return [CaughtWarning(**one) for one in self.warnings]


@of_kind("returned")
class Returned(Message):
    """The result; ``pickled`` is None where it does not pickle, for the reason ``why``."""

    pickled: bytes | None
    repr: str
    why: str = ""


@of_kind("raised")
class Raised(Message):
    """An exception: its pickle if it has one, and all about it as text.

    ``outcome`` is the class name of one of pytest's own (skip, fail, xfail, exit), or ""; of these
    classes, which no pickle finds, there are the parts (``exception_parts.py``).
    """

    repr: str
    type: str
    traceback: str
    pickled: bytes | None = None
    parts: bytes | None = None
    outcome: str = ""
    why: str = ""


@of_kind("exit")
class Exited(Message):
    """The call ended in SystemExit."""

    code: int | str | None
    text: str


@of_kind("not_loaded")
class NotLoaded(Message):
    """The function or its arguments could not be unpickled; ``text`` is the traceback."""

    text: str


# -- from bytes to messages ------------------------------------------------------------------------


def decode(plain: frames.Plain) -> Message:
    """Return the message that plain data from a frame stands for.

    Raises:
        FrameError: There are no such messages, or a field is missing or of the wrong type.

    """
    kind = plain["kind"]
    cls = KINDS.get(kind)
    if cls is None:
        raise frames.FrameError(f"there are no messages of kind {kind!r}")
    fields = {name: value for name, value in plain.items() if name != "kind"}
    try:
        return checked(cls, fields)
    except (LookupError, TypeError) as error:
        raise damaged(kind, error) from error


def decode_or_none(plain: frames.Plain | None) -> Message | None:
    """Return the message that plain data stands for; None if it stands for none."""
    if plain is None:
        return None
    try:
        return decode(plain)
    except frames.FrameError:
        return None


def damaged(kind: str, error: Exception) -> frames.FrameError:
    """Return the error for a message of a known kind that does not hold what it should."""
    return frames.FrameError(
        f"a message of kind {kind!r} is damaged ({type(error).__name__}: {error!s:.300})"
    )
