"""Documents of sessions for the page that shows them: a small one, a hostile one, a large one."""

from __future__ import annotations

from typing import Any

from pytest_cudafork.documents.form import head

ROOT = "/project"
HOSTILE = "</script><script>alert(1)</script><b>&\"'`{{7*7}}\u202e\x1b[31m\udcff-->]]>"
"""What must neither end an element or attribute, run, nor change how text after it is read."""


def frame(line: int, code: str = "touch()", name: str = "pkg/gate.py") -> dict[str, Any]:
    """Return a frame."""
    return {"file": f"{ROOT}/{name}", "line": line, "function": "go", "code": code}


def touch(line: int = 3, **changed: Any) -> dict[str, Any]:
    """Return a touch, whose culprit is a line of ``pkg/gate.py``."""
    return {
        "process": 10,
        "call": "cuInit",
        "library": "/lib/libffi.so.8",
        "culprit": f"{ROOT}/pkg/gate.py:{line}",
        "words": f"pkg/gate.py:{line}: class body of Gate, evaluated at import",
        "at_import": True,
        "poisoned": False,
        "again": False,
        "test": "",
        "phase": "",
        "imported_through": [frame(1, "import pkg.gate", "pkg/user.py")],
        "stack": [frame(line), frame(9, "x = Gate()", "pkg/other.py")],
        "advice": ["make it lazy"],
        **changed,
    }


def a_test(number: int, outcome: str = "passed", method: str | None = None) -> dict[str, Any]:
    """Return a test."""
    way = {"method": method, "why": "not fork: 2 threads", "seconds": 0.05 + number / 1e4}
    return {
        "test": f"tests/test_it.py::test_number[{number}]",
        "file": "tests/test_it.py",
        "line": 10 + number,
        "outcome": outcome,
        "runs": 1,
        "seconds": 0.02,
        "phases": [
            {"phase": phase, "outcome": "passed" if phase != "call" else outcome, "seconds": 0.005}
            for phase in ("setup", "call", "teardown")
        ],
        "message": "" if outcome == "passed" else f"AssertionError: {number}",
        "where": None if outcome == "passed" else {"file": f"{ROOT}/tests/test_it.py", "line": 12},
        "isolation": way if method else None,
    }


def module(name: str, *, touches: bool = False, verdict: str = "clean") -> dict[str, Any]:
    """Return what became of the import of a module."""
    return {
        "module": name,
        "package": name.partition(".")[0],
        "without": "",
        "verdict": "touches" if touches else verdict,
        "outcome": "failed" if touches else "passed" if verdict == "clean" else "error",
        "where": f"{ROOT}/pkg/gate.py:3" if touches else "",
        "scope": "class body" if touches else "",
        "reason": "",
        "output": "",
        "seconds": 0.01,
        "confirmed": None,
        "artifact": "",
        "touches": [touch()] if touches else [],
        "loaded": ["a", "b"],
        "running": [],
        "traces": None,
    }


def capture(nodes: int = 3, verdict: str = "failed") -> dict[str, Any]:
    """Return a captured graph that was checked."""
    finding = {
        "check": "aliased-state",
        "what": "the same object",
        "path": "state",
        "where": f"{ROOT}/tests/test_graph.py:17",
        "why": "it is shared",
        "todo": "build a new one",
    }
    return {
        "test": "tests/test_it.py::test_number[0]",
        "title": "capture_pair(4, mode='FULL')",
        "backend": "software",
        "verdict": verdict,
        "checks": ["host-sync", "aliased-state"],
        "not_checked": {"wrong-contents": "no other descriptor"},
        "notes": [],
        "findings": [finding] if verdict == "failed" else [],
        "nodes": [
            {"kind": "op", "name": f"aten::mul_{n}", "where": f"{ROOT}/m.py:{n}", "times": 2}
            for n in range(nodes)
        ],
    }


def check(*touches: dict[str, Any], **changed: Any) -> dict[str, Any]:
    """Return what the check of a session saw."""
    return {
        "level": "fork",
        "device": "absent",
        "simulated_driver": True,
        "witness": "phantom driver",
        "findings": [],
        "touches": list(touches),
        "forks": [],
        "processes": {},
        "lost": [],
        "not_observable": [],
        **changed,
    }


def finding(**changed: Any) -> dict[str, Any]:
    """Return an error of the check."""
    return {
        "error": "CudaForkError",
        "place": f"{ROOT}/tests/test_it.py:23",
        "process": 10,
        "culprit": f"{ROOT}/pkg/gate.py:3",
        "story": "fork refused\n  because of the line",
        "test": "tests/test_it.py::test_number[0]",
        "phase": "",
        "accepted": False,
        **changed,
    }


def fork(**changed: Any) -> dict[str, Any]:
    """Return a fork while CUDA was initialized."""
    return {
        "process": 10,
        "call": "os.fork",
        "verdict": "guarded",
        "place": f"{ROOT}/tests/test_it.py:23",
        "test": "tests/test_it.py::test_number[0]",
        "stack": [frame(23, "os.fork()", "tests/test_it.py")],
        **changed,
    }


def audit(*modules: dict[str, Any], graph: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return an import audit of these modules."""
    bad = [each["module"] for each in modules if each["outcome"] in ("failed", "error")]
    touching = [each["module"] for each in modules if each["touches"]]
    culprit = {"culprit": f"{ROOT}/pkg/gate.py:3", "scope": "class body", "modules": touching}
    return {
        "good": not bad,
        "complete": True,
        "packages": {"pkg": len(modules)},
        "since": None,
        "culprits": [culprit] if touching else [],
        "modules": list(modules),
        "graph": graph,
    }


def graph_of(names: list[str], touching: int) -> dict[str, Any]:
    """Return who imports whom: each module the one before it, the first of which touches."""
    chain = [[n + 1, n, f"pkg/m{n}.py:1"] for n in range(touching - 1)]
    return {
        "title": "What initializes CUDA when pkg is imported",
        "modules": [
            {
                "name": name,
                "inside": True,
                "state": "holds" if n == 0 else "leads" if n < touching else "clean",
                "verdict": "touches" if n < touching else "clean",
                "culprit": 0 if n < touching else -1,
                "reason": "",
                "path": f"{name.replace('.', '/')}.py",
            }
            for n, name in enumerate(names)
        ],
        "edges": [[n + 1, n, f"pkg/m{n}.py:1"] for n in range(len(names) - 1)],
        "culprits": [
            {
                "title": "pkg/gate.py:3 (class body)",
                "label": "gate.py:3 (class body)",
                "count": f"{touching} modules",
                "lines": [
                    f"pkg/gate.py:3 (class body): {touching} modules",
                    "make `pkg/m1.py:1` lazy: frees all",
                ],
                "todo": 1,
                "sinks": [0],
                "chain": chain[:3],
                "cuts": chain[:1],
                "hops": chain,
            }
        ],
    }


def process(number: int, kind: str, parent: int | None, start: float, end: float) -> dict[str, Any]:
    """Return a process of the timeline."""
    return {
        "process": number,
        "name": f"{kind} {number}",
        "kind": kind,
        "parent": parent,
        "start": start,
        "end": end,
    }


def event(
    kind: str, name: str, number: int | None, start: float, seconds: float = 0.0, **details: str
) -> dict[str, Any]:
    """Return an event of the timeline."""
    return {
        "kind": kind,
        "name": name,
        "process": number,
        "start": start,
        "seconds": seconds,
        "details": details,
    }


def document(**changed: Any) -> dict[str, Any]:
    """Return the document of a session of one test, in which all was seen and nothing is wrong."""
    tests = changed.pop("tests", [a_test(0)])
    counts: dict[str, int] = {}
    for test in tests:
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    return {
        **head("session"),
        "command": ["-q"],
        "root": ROOT,
        "exit_status": 0,
        "good": True,
        "stopped": "",
        "not_written": [],
        "failed_for": [],
        "seconds": 2.5,
        "counts": counts,
        "tests": tests,
        "collection_errors": [],
        "collection_skips": [],
        "captures": [],
        "captured_graphs": None,
        "replay_audit": None,
        "check": check(),
        "imports": None,
        "timeline": {
            "processes": [process(10, "pytest", None, 0.0, 2.5)],
            "events": [event("session", "session", 10, 0.0, 2.5)],
        },
        "not_observable": [],
        "hook_errors": [],
        **changed,
    }


def full() -> dict[str, Any]:
    """Return a document that has something of everything, and is not good."""
    names = [f"pkg.m{n}" for n in range(6)]
    modules = [module(name, touches=n < 3) for n, name in enumerate(names)]
    tests = [a_test(0, "failed"), a_test(1, method="fork"), a_test(2, "skipped"), a_test(3)]
    nodeid = f"{tests[1]['test']} (call)"
    shown = {
        "kind": "stale-data",
        "what": "it reads what is out of date",
        "lines": [["captured", f"{ROOT}/tests/test_graph.py:3"]],
        "why": "nobody filled it",
        "todo": "fill it",
        "tests": [tests[3]["test"]],
    }
    return document(
        exit_status=1,
        good=False,
        tests=tests,
        collection_errors=[{"node": "tests/test_no.py", "message": "ImportError", "where": None}],
        collection_skips=[{"node": "tests/test_gpu.py", "message": "no GPU", "where": None}],
        captures=[capture(), capture(0, "passed"), {**capture(0, "not judged"), "nodes": None}],
        captured_graphs={
            "captures": 3,
            "replays": 2,
            "errors": [{**shown, "fails": False}],
            "suspicions": [shown],
            "judged": 12,
            "not_judged": {"an operator without a rule": 2},
            "silenced": 1,
            "elsewhere": 1,
            "replays_elsewhere": 2,
        },
        replay_audit={
            "audited": 2,
            "cannot_fail": [{"test": tests[3]["test"], "why": "it looks at no result"}],
            "not_judged": [{"test": "tests/test_it.py::test_gone", "why": "it failed by itself"}],
        },
        check=check(
            touch(test=nodeid, process=12),
            touch(test=nodeid, process=13, again=True),
            touch(7, at_import=False, poisoned=True, process=14),
            findings=[finding(), finding(accepted=True, test="", phase="collect")],
            forks=[fork()],
            processes={"15": "python program.py"},
            lost=["the records of process 16"],
        ),
        imports=audit(*modules, graph=graph_of(names, 3)),
        timeline={
            "processes": [
                process(10, "pytest", None, 0.0, 2.5),
                process(11, "fork server", 10, 0.1, 2.4),
                process(12, "isolated", 11, 0.5, 0.8),
                process(14, "forked", 10, 1.0, 1.0),
                process(15, "program", 10, 1.2, 1.5),
            ],
            "events": [
                event("session", "session", 10, 0.0, 2.5),
                event("test", f"{tests[0]['test']} (call)", 10, 0.2, 0.2, outcome="failed"),
                event("process", "started", 11, 0.1, command="python -m server"),
                event("isolated test", nodeid, 12, 0.5, 0.3, outcome="passed", isolation="fork"),
                event("touch", "touch: cuInit", 12, 0.6, culprit=f"{ROOT}/pkg/gate.py:3"),
                event("fork", "fork: guarded", 10, 0.9, verdict="guarded"),
                event("lease", tests[1]["test"], None, 0.5, 0.3, gpu="0"),
            ],
        },
        not_observable=["no witness in process 16"],
        hook_errors=[
            {
                "hook": "pytest_cudafork_touch",
                "where": "conftest.py:3",
                "words": "ValueError",
                "raised": True,
            }
        ],
    )


def hostile() -> dict[str, Any]:
    """Return the full document with all of its free text hostile."""
    kept = ("format", "kind", "outcome", "verdict", "method", "backend", "error", "state", "phase")

    def spoiled(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            free = key in ("processes", "not_checked", "not_judged", "packages")
            return {
                f"{HOSTILE}{name}" if free else name: spoiled(each, name)
                for name, each in value.items()
            }
        if isinstance(value, list):
            return [spoiled(each, key if isinstance(each, str) else "") for each in value]
        return (
            f"{HOSTILE}{value}" if isinstance(value, str) and value and key not in kept else value
        )

    made: dict[str, Any] = spoiled(full())
    return made


def large(tests: int = 1000, modules: int = 953) -> dict[str, Any]:
    """Return a document of many isolated tests and an audit of many modules; most touch."""
    words = ("passed", "passed", "passed", "skipped", "failed")
    seen = [a_test(n, words[n % 5], ("fork", "forkserver")[n % 2]) for n in range(tests)]
    names = [f"pkg.part{n // 50}.m{n}" for n in range(modules)]
    touching = 6 * modules // 10
    processes, events = [process(10, "pytest", None, 0.0, tests * 0.1)], []
    for n, test in enumerate(seen):
        start, nodeid = n * 0.1, test["test"]
        processes.append(process(100 + n, "isolated", 10, start, start + 0.09))
        events += [
            event("isolated test", f"{nodeid} ({phase})", 100 + n, start + 0.03 * at, 0.03,
                  outcome=test["outcome"])
            for at, phase in enumerate(("setup", "call", "teardown"))
        ]  # fmt: skip
        events.append(event("touch", "touch: cuInit", 100 + n, start + 0.04))
    return document(
        exit_status=1,
        good=False,
        tests=seen,
        check=check(*(touch(n % 40, test=f"{t['test']} (call)") for n, t in enumerate(seen))),
        captures=[capture(40, ("passed", "failed")[n % 2]) for n in range(100)],
        imports=audit(
            *(module(name, touches=n < touching) for n, name in enumerate(names)),
            graph=graph_of(names, touching),
        ),
        timeline={"processes": processes, "events": events},
    )
