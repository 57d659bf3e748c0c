"""Messages that are no frames, or frames that make no sense: the test fails, and nothing else.

Some tests look for the channel of their own process in the frames below them. No test does that by
accident; it stands for every mistake that this package could make itself.
"""

from __future__ import annotations

import pytest

from tests.support.death import headline, run_deaths
from tests.support.isolation import METHODS, isolate_all
from tests.support.sessions import run_session

pytestmark = pytest.mark.fresh_children("children and descriptors of a session are counted")


@pytest.mark.parametrize("method", METHODS)
def test_what_is_no_message_fails_the_test_and_no_other(
    pytester: pytest.Pytester, method: str
) -> None:
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os
        def test_writes_everywhere():
            for name in os.listdir("/proc/self/fd"):
                link = f"/proc/self/fd/{name}"
                if os.path.exists(link) and "socket" in os.readlink(link):
                    os.write(int(name), b"this is no message at all")
        def test_closes_everything(): os.closerange(3, 100)
        def test_last(): pass
        """
    )
    result = run_session(pytester, "-rA")
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] == 1
    assert outcomes["failed"] == 2
    result.stdout.fnmatch_lines_random(["ChildError: not a message, in call*", "PASSED *test_last"])


@pytest.mark.parametrize("capture", ["fd", "sys"])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_test_had_written_survives_half_a_message(
    pytester: pytest.Pytester, method: str, capture: str
) -> None:
    """It goes on to its end, and pytest reads its output for reports that nobody understands."""
    isolate_all(pytester, method)
    pytester.makepyfile(
        """
        import os, sys
        def test_writes_half_a_message():
            print("written to stdout")
            print("written to stderr", file=sys.stderr)
            for name in os.listdir("/proc/self/fd"):
                link = f"/proc/self/fd/{name}"
                if os.path.exists(link) and "socket" in os.readlink(link):
                    os.write(int(name), b"\\xc0FRK")
        def test_last(): print("written by the last")
        """
    )
    result = run_session(pytester, "-rA", f"--capture={capture}")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "ChildError: not a message, in call" in text
    for each in ("written to stdout", "written to stderr", "written by the last"):
        assert text.count(f"\n{each}\n") == 1


HOSTILE = """
import gc
import json
from pytest_cudafork.process.channel import Channel
from pytest_cudafork.process.protocol import frames

def the_channel():
    # in a frame below the test, or in one of a generator that waits; some objects gc does not tell
    frame, values = sys._getframe(), []
    while frame is not None:
        values += frame.f_locals.values()
        frame = frame.f_back
    return next(value for value in values + gc.get_objects() if type(value) is Channel)

def send(channel, kind, **fields):
    channel._sock.sendall(frames.encode({"kind": kind, **fields}, channel._cookie))

GOOD = {
    "nodeid": "test_d.py::test_hostile", "location": ("test_d.py", 1, "test_hostile"),
    "keywords": {"test_hostile": 1}, "outcome": "passed", "longrepr": None, "when": "call",
    "user_properties": [("key", 1)], "sections": [("Captured stdout call", "text")],
    "duration": 0.1, "start": 1.0, "stop": 2.0, "$report_type": "TestReport",
}
LIKE = "_cudafork_same"
CRASH = {"path": "a.py", "lineno": 1, "message": "no"}
ENTRY = {"type": "ReprEntryNative", "data": {"lines": ["x"]}}
TRACE = {"reprentries": [ENTRY], "extraline": None, "style": "native"}
FAILURE = {"reprcrash": CRASH, "reprtraceback": TRACE, "sections": [], "chain": None}
STRANGE = [None, 5, 1.5, "text", b"bytes", [], [5], ["a", "b"], (), (1, 2, 3), {}, {"x": 1}, True]

def report(**changes):
    return ("report", {"data": {**GOOD, **changes}})

SEQUENCES = {
    "done-at-once": [("done", {})],
    "over-at-once": [("over", {"last": True, "shouldstop": False, "shouldfail": False})],
    "over-without-fields": [("over", {})],
    "over-with-strange-fields": [("over", {"last": 5, "shouldstop": 5, "shouldfail": []})],
    "unknown-kind": [("surprise", {})],
    "no-report": [("report", {})],
    "empty-report": [("report", {"data": {}})],
    "report-of-a-number": [("report", {"data": 5})],
    "report-of-another-type": [report(**{"$report_type": "CollectReport"})],
    "report-of-an-unknown-type": [report(**{"$report_type": "Nonsense"})],
    "report-without-type": [("report", {"data": {"outcome": "passed", "when": "call"}})],
    "no-phase": [report(when="collect")],
    "like-the-one-before-without-times": [("report", {"data": {"when": "call", LIKE: True}})],
    "like-the-one-before-in-a-strange-phase": [("report", {"data": {"when": 5, LIKE: True,
        "duration": 0.1, "start": 1.0, "stop": 2.0}})],
    "skip-without-reason": [report(outcome="skipped", longrepr=None)],
    "skip-with-strange-reason": [report(outcome="skipped", longrepr=(1, 2, 3))],
    "no-warning": [("warning", {})],
    "strange-warning": [("warning", {"pickled": b"junk", "type": 5, "text": [], "filename": 1,
                                     "lineno": "x", "line": 5})],
    "strange-stop": [("stop", {"reason": 5, "returncode": "x"})],
    "strange-internal": [("internal", {"text": 5})],
    "internal-without-text": [("internal", {})],
    "missing-everything": [("missing", {})],
    "missing-numbers": [("missing", {"found": [1, 2], "errors": 5})],
    "deep": [("report", {"data": json.loads("[" * 300 + "]" * 300)})],
    "failure-without-crash": [report(outcome="failed", longrepr={"reprcrash": 5})],
    "failure-without-lines": [report(outcome="failed", longrepr={**FAILURE, "reprtraceback":
        {**TRACE, "reprentries": [{"type": "ReprEntryNative", "data": {"lines": [5]}}]}})],
    "failure-of-unknown-entries": [report(outcome="failed", longrepr={**FAILURE, "reprtraceback":
        {**TRACE, "reprentries": [{"type": "Nonsense", "data": {}}]}})],
}
for field in ("location", "keywords", "outcome", "when"):
    SEQUENCES[f"{field}-missing"] = [
        ("report", {"data": {key: one for key, one in GOOD.items() if key != field}})
    ]
EMPTY = (None, [], (), {})  # as good as none
ACCEPTED = {"keywords": (dict,), "duration": (int, float, bool), "outcome": (str,)}
for field in ("when", "outcome", "location", "keywords", "sections", "user_properties", "duration"):
    for number, value in enumerate(STRANGE):
        empty = field in ("sections", "user_properties") and value in EMPTY
        if not empty and type(value) not in ACCEPTED.get(field, ()):
            SEQUENCES[f"{field}-{number}"] = [report(**{field: value})]

@pytest.mark.parametrize("name", SEQUENCES)
def test_hostile(name):
    channel = the_channel()
    for kind, fields in SEQUENCES[name]:
        send(channel, kind, **fields)
    os._exit(0)

def test_only_teardown():
    channel = the_channel()
    send(channel, "report", data={**GOOD, "when": "teardown"})
    os._exit(0)
def test_unknown_outcome_then_leaves():
    channel = the_channel()
    send(channel, "report", data={**GOOD, "outcome": "great"})
    send(channel, "over", last=True, shouldstop=False, shouldfail=False)
    send(channel, "done")
    os._exit(0)
def test_over_then_more():
    channel = the_channel()
    for when in ("call", "teardown"):
        send(channel, "report", data={**GOOD, "when": when})
    send(channel, "over", last=True, shouldstop=False, shouldfail=False)
    send(channel, "report", data={**GOOD, "when": "call", "outcome": "failed", "longrepr": "late"})
    os._exit(0)
def test_descriptors_with_everything():
    channel = the_channel()
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    with contextlib.suppress(OSError):
        for _ in range(20):
            socket.send_fds(channel._sock, [b""], fds)
    for _ in range(5):
        frame = frames.encode({"kind": "surprise"}, channel._cookie)
        socket.send_fds(channel._sock, [frame], fds)
    os._exit(0)
def test_names_another_test():
    channel = the_channel()
    send(channel, "report", data={**GOOD, "nodeid": "test_d.py::test_last", "outcome": "failed",
                                 "longrepr": "not the last one's fault"})
    send(channel, "report", data={**GOOD, "nodeid": "test_d.py::test_last", "when": "teardown"})
    send(channel, "over", last=True, shouldstop=False, shouldfail=False)
    send(channel, "done")
    os._exit(0)
def test_last(): pass
"""


def counted(lines: list[str]) -> dict[str, int]:
    """Return how many of the summary's lines are of which outcome."""
    errors = sum(line.startswith("ERROR") for line in lines)
    return {"failed": len(lines) - errors, "errors": errors}


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_makes_no_sense_fails_its_test_and_no_other(
    pytester: pytest.Pytester, method: str
) -> None:
    body = HOSTILE
    args = ["--durations=3", "--junitxml=out.xml"]
    if method == "spawn":  # a few: each starts an interpreter, and they are read by the same code
        few = ("done-at-once", "unknown-kind", "no-report", "strange-stop", "when-0", "deep")
        args += ["-k", f"not test_hostile or {' or '.join(f'[{name}]' for name in few)}"]
    result = run_deaths(pytester, method, body, *args)
    output = result.stdout.str()
    lines = output.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED test_d.py", "ERROR test_d.py"))]
    passed = [line.partition("::")[2] for line in lines if line.startswith("PASSED ")]
    assert passed == ["test_over_then_more", "test_last"]
    assert "ERROR test_d.py::test_over_then_more - ChildError: not a message" in output
    result.assert_outcomes(passed=2, **counted(failed))
    assert "no report of" in headline(result, "test_hostile[done-at-once]")
    assert "a message of kind 'report' is damaged" in headline(result, "test_hostile[no-report]")
    assert "there are no messages of kind 'surprise'" in headline(
        result, "test_hostile[unknown-kind]"
    )
