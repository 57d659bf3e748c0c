"""Tests of messages that are frames but no sense: the test fails, and nothing else happens.

The tests in these sessions take the channel of their own process from the garbage collector. No
test does that by accident; it stands for every mistake that this package could make itself.
"""

from __future__ import annotations

import pytest

from tests.plugin.death_support import METHODS, headline, run_deaths

HOSTILE = """
import gc, json
from pytest_cudafork.isolate import child

def the_channel():
    (mine,) = [one for one in gc.get_objects() if type(one) is child.Channel and one.is_mine]
    return mine

GOOD = {
    "nodeid": "test_d.py::test_hostile", "location": ("test_d.py", 1, "test_hostile"),
    "keywords": {"test_hostile": 1}, "outcome": "passed", "longrepr": None, "when": "call",
    "user_properties": [("key", 1)], "sections": [("Captured stdout call", "text")],
    "duration": 0.1, "start": 1.0, "stop": 2.0, "$report_type": "TestReport",
}
CRASH = {"path": "a.py", "lineno": 1, "message": "no"}
ENTRY = {"type": "ReprEntryNative", "data": {"lines": ["x"]}}
TRACE = {"reprentries": [ENTRY], "extraline": None, "style": "native"}
FAILURE = {"reprcrash": CRASH, "reprtraceback": TRACE, "sections": [], "chain": None}
STRANGE = [None, 5, 1.5, "text", b"bytes", [], [5], ["a", "b"], (), (1, 2, 3), {}, {"x": 1}, True]

def report(**changes):
    return ("report", {"data": {**GOOD, **changes}})

SEQUENCES = {
    "done-at-once": [("done", {"shouldstop": False, "shouldfail": False})],
    "done-without-fields": [("done", {})],
    "done-with-strange-fields": [("done", {"shouldstop": 5, "shouldfail": []})],
    "unknown-kind": [("surprise", {})],
    "no-report": [("report", {})],
    "empty-report": [("report", {"data": {}})],
    "report-of-a-number": [("report", {"data": 5})],
    "report-of-another-type": [report(**{"$report_type": "CollectReport"})],
    "report-of-an-unknown-type": [report(**{"$report_type": "Nonsense"})],
    "report-without-type": [("report", {"data": {"outcome": "passed", "when": "call"}})],
    "no-phase": [report(when="collect")],
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
for field in GOOD:
    if field not in ("nodeid", "$report_type", "longrepr", "start", "stop"):
        SEQUENCES[f"{field}-missing"] = [
            ("report", {"data": {key: one for key, one in GOOD.items() if key != field}})
        ]
ACCEPTED = {"keywords": (dict,), "duration": (int, float, bool), "outcome": (str,),
            "sections": (list,), "user_properties": (list,)}
for field in ("when", "outcome", "location", "keywords", "sections", "user_properties", "duration"):
    for number, value in enumerate(STRANGE):
        fits = type(value) in ACCEPTED.get(field, ()) and not (
            field in ("sections", "user_properties") and value)
        if not fits:
            SEQUENCES[f"{field}-{number}"] = [report(**{field: value})]

@pytest.mark.parametrize("name", SEQUENCES)
def test_hostile(name):
    channel = the_channel()
    for kind, fields in SEQUENCES[name]:
        channel.send(kind, **fields)
    time.sleep(60)

def test_only_teardown():
    channel = the_channel()
    channel.send("report", data={**GOOD, "when": "teardown"})
    time.sleep(60)
def test_unknown_outcome_then_leaves():
    channel = the_channel()
    channel.send("report", data={**GOOD, "outcome": "great"})
    channel.send("done", shouldstop=False, shouldfail=False)
    os._exit(0)
def test_done_then_more():
    channel = the_channel()
    for when in ("call", "teardown"):
        channel.send("report", data={**GOOD, "when": when})
    channel.send("done", shouldstop=False, shouldfail=False)
    channel.send("report", data={**GOOD, "when": "call", "outcome": "failed", "longrepr": "late"})
    os._exit(0)
def test_descriptors_with_everything():
    channel = the_channel()
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    with contextlib.suppress(OSError):
        for _ in range(20):
            socket.send_fds(channel._sock, [b""], fds)
    for _ in range(5):
        channel.send_with_fds("surprise", fds)
    time.sleep(60)
def test_names_another_test():
    channel = the_channel()
    channel.send("report", data={**GOOD, "nodeid": "test_d.py::test_last", "outcome": "failed",
                                 "longrepr": "not the last one's fault"})
    channel.send("report", data={**GOOD, "nodeid": "test_d.py::test_last", "when": "teardown"})
    channel.send("done", shouldstop=False, shouldfail=False)
    os._exit(0)
def test_last(): pass
"""


@pytest.mark.parametrize("method", METHODS)
def test_a_message_that_makes_no_sense_fails_its_test_and_no_other(
    pytester: pytest.Pytester, method: str
) -> None:
    body = HOSTILE
    args = ["--durations=3", "--junitxml=out.xml"]
    if method == "spawn":  # a few of each kind, for each takes a second
        body = body.replace("def test_hostile(name):", "def test_hostile(name):  # few", 1)
        args += ["-k", "not -1 and not -2 and not -3 and not -4 and not -missing"]
    result = run_deaths(pytester, method, body, *args, timeout=20)
    output = result.stdout.str()
    outcomes = result.parseoutcomes()
    failed = sum(
        line.startswith(("FAILED test_d.py", "ERROR test_d.py")) for line in output.splitlines()
    )
    assert "PASSED test_d.py::test_hostile" not in output
    assert "PASSED test_d.py::test_last" in output
    assert outcomes["passed"] <= 3, output  # and those that died after their call, with an error
    assert failed == outcomes["failed"] + outcomes.get("errors", 0)
    assert "time limit of" not in output
    assert "no report of" in headline(result, "test_hostile[done-at-once]")
    assert "a message of kind 'report' is damaged" in headline(result, "test_hostile[no-report]")
    assert "there are no messages of kind 'surprise'" in headline(
        result, "test_hostile[unknown-kind]"
    )
    assert "test_last" not in "".join(
        line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))
    )
