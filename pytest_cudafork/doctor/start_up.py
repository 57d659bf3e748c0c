"""What the start-up of a Python process does before its first line, and the start method it has.

``.pth`` files and ``sitecustomize`` run in every process of the environment: a touch there poisons
each fork of each of them, and a thread is one that forks lose.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_cudafork.counted import count_of
from pytest_cudafork.doctor.children import Answer, ask
from pytest_cudafork.doctor.finding import Finding, note, ok, problem, warning
from pytest_cudafork.observe.story.words import headline
from pytest_cudafork.programs.deeds import StartMethodInForce
from pytest_cudafork.settings import environment

_SECONDS = 120.0
_HEAVY = ("torch", "numpy", "triton", "cupy", "jax", "tensorflow", "numba", "vllm")
"""Modules by whose import at start-up every process of the environment pays."""
_CUDA = ("libcuda.so", "libcudart.so", "libcublas", "libnccl", "libtorch")
_SUBJECT = "start-up"
_METHODS = ("fork", "spawn", "forkserver")
_OF_VLLM = ("fork", "spawn")
"""What ``VLLM_WORKER_MULTIPROC_METHOD`` is declared to take in vllm/envs.py; "fork" is its default.

For "forkserver" its API server begins a fork server (entrypoints, ``setup_forkserver``), while the
table in envs.py refuses that value since it checks values at all (2025).
"""
_COMPLAINTS = ("Error in sitecustomize", "Error in usercustomize", "Error processing line")
"""How the module ``site`` begins to tell that a file fails."""


def examine_start_up() -> tuple[list[Finding], Mapping[str, Any]]:
    """Return what the start-up does, as findings and as facts."""
    answer = ask("start_up.py", timeout=_SECONDS)
    if answer.report is None:
        why = answer.why or "no report"
        found = warning(
            _SUBJECT,
            f"what .pth files and sitecustomize do could not be seen: {why}",
            "a touch or a thread at the start of every process would go unnoticed here",
            "run `python -X importtime -c pass` and read what it imports and says",
        )
        return [found, *_unseen(answer)], {}
    files: list[dict[str, Any]] = answer.report
    of_files = (one for each in files for one in _of_file(each))
    findings = [*_touches(answer), *_failures(answer), *of_files]
    quiet = [each["file"] for each in files if not _does_something(each)]
    if not findings:
        read = count_of(len(files), "file is", "files are")
        findings.append(
            ok(
                _SUBJECT,
                f"{read} read at the start of every process (.pth, sitecustomize); none touches "
                "CUDA, loads a library of it, or starts a thread",
            )
        )
    facts = {"files": files, "quiet": quiet}
    return [*findings, *_unseen(answer), *_start_method(answer, files)], facts


def _does_something(file: Mapping[str, Any]) -> bool:
    return bool(file["threads"] or file["libraries"] or file["start_method"])


def _touches(answer: Answer) -> list[Finding]:
    """Say which lines touched; both starts of the interpreter may have seen one."""
    touches = answer.result.touches if answer.result is not None else ()
    lines = dict.fromkeys(headline(touch) for touch in touches)
    return [
        problem(
            _SUBJECT,
            f"every Python process here initializes CUDA before its first line: {at}",
            "whatever forks then makes children that can never use CUDA, and the check refuses it",
            "move that line out of the .pth file or sitecustomize, or uninstall what brings it",
        )
        for at in lines
    ]


def _failures(answer: Answer) -> list[Finding]:
    """Say which files Python has complained of, in the words in which it does so at each start."""
    said = answer.result.stderr.splitlines() if answer.result is not None else []
    return [
        warning(
            _SUBJECT,
            f"a file fails in every process: {line}",
            "Python goes on without what follows in it",
            "run `python -c pass`, which shows the error, and mend the file or remove it",
        )
        for line in dict.fromkeys(said)
        if line.startswith(_COMPLAINTS)
    ]


def _of_file(file: Mapping[str, Any]) -> list[Finding]:
    name, findings = str(file["file"]), []
    if file["threads"]:
        findings.append(
            warning(
                _SUBJECT,
                f"{name} starts {_count(file['threads'])}: {', '.join(file['threads'])}",
                "forked children lack the thread and wait for ever for what it holds; no process "
                "here counts as safe to fork, so isolated tests run in a fork server",
                "start the thread when it is needed, or uninstall what brings the file",
            )
        )
    cuda = [path for path in file["libraries"] if os.path.basename(path).startswith(_CUDA)]
    if cuda:
        findings.append(
            warning(
                _SUBJECT,
                f"{name} loads {', '.join(map(os.path.basename, cuda))} into every process",
                "to load a library of CUDA touches nothing, but a driver that is loaded before a "
                "session begins is not replaced by the phantom, and each start takes longer",
                "import the package where it is used",
            )
        )
    heavy = [each for each in file["modules"] if each in _HEAVY]
    if heavy:
        findings.append(
            note(
                _SUBJECT,
                f"{name} imports {', '.join(heavy)}",
                "every process of this environment pays for it, isolated tests by spawn most",
                "import it where it is used",
            )
        )
    return findings


def _unseen(answer: Answer) -> list[Finding]:
    unseen = answer.result.unseen if answer.result is not None else ()
    return [
        warning(
            "watch",
            f"not observable: {limit}",
            "what cannot be seen is not clean: a touch of that kind has no line here",
            "see the page 'What cannot be seen' of the documentation",
        )
        for limit in unseen
    ]


def _start_method(answer: Answer, files: Sequence[Mapping[str, Any]]) -> list[Finding]:
    if answer.result is None:
        return []
    chosen = [each for each in files if each["start_method"]]
    force = answer.result.start_method
    if chosen:  # a .pth file runs before the watch of a program begins
        last = chosen[-1]
        force = StartMethodInForce(last["start_method"], f"set by {last['file']}")
    return examine_method(force)


def examine_method(force: StartMethodInForce) -> list[Finding]:
    """Judge the start method in force, and the variables that ask for another one."""
    subject, text = "start method", f"{force.method}, {force.why}"
    if force.method == "fork":
        findings = [
            note(
                subject,
                text,
                "a child of a process that has initialized CUDA can never use CUDA",
                "multiprocessing.set_start_method('spawn') in the program's main block, or "
                "'forkserver'; Python 3.14 has 'forkserver' as its default",
            )
        ]
    else:
        findings = [
            ok(
                subject,
                text,
                "children begin without what the parent has set up: functions and arguments must "
                "be picklable, and the program needs `if __name__ == '__main__':`",
            )
        ]
    return [*findings, *_asked_of_multiprocessing(force.method), *_asked_of_vllm(force.method)]


def _asked_of_multiprocessing(method: str) -> list[Finding]:
    """Judge the variable that some programs read for multiprocessing."""
    name = environment.COMMON_METHOD
    wanted = environment.value(name)
    if not wanted or wanted == method:
        return []
    if wanted not in _METHODS:
        return [_unknown_method(name, wanted, "multiprocessing's", _METHODS)]
    return [
        warning(
            name,
            f"is set to {wanted!r}; multiprocessing does not read it, and uses {method}",
            f"only programs that look for the variable use {wanted}",
            f"multiprocessing.set_start_method({wanted!r}) in the program",
        )
    ]


def _asked_of_vllm(method: str) -> list[Finding]:
    """Judge the variable that vLLM reads."""
    name = environment.VLLM_METHOD
    vllm = environment.value(name)
    if not vllm:
        return []
    if vllm == "forkserver":
        return [
            warning(
                name,
                "is set to 'forkserver', which vLLM's envs.py does not list (fork, spawn): its API "
                "server begins a fork server for it, and releases that check the value refuse it",
                "whether vLLM starts, and by which method, depends on its release",
                f"set {name}=spawn, or try it with the release that is installed",
            )
        ]
    if vllm not in _OF_VLLM:
        return [_unknown_method(name, vllm, "vLLM's", _OF_VLLM)]
    return [
        note(
            name,
            f"is set to {vllm!r}: vLLM starts its engine core and workers so",
            f"multiprocessing itself uses {method} all the same; tests here run vLLM "
            "otherwise than where the variable is not set",
            "set it in the CI job's own lines, where it is seen, or mark the tests "
            f"start_methods({vllm!r})",
        )
    ]


def _unknown_method(name: str, given: str, whose: str, methods: Sequence[str]) -> Finding:
    close = difflib.get_close_matches(given.strip().lower(), methods, n=1)
    return warning(
        name,
        f"is set to {given!r}, which is not one of {whose} ({', '.join(methods)})",
        "programs that read it fail, or start their processes by another method than was meant",
        f"did you mean {close[0]}? set {name}={close[0]}, or take it out of the environment"
        if close
        else f"set it to one of these, or take {name} out of the environment",
    )


def _count(threads: Sequence[str]) -> str:
    return "a thread" if len(threads) == 1 else f"{len(threads)} threads"
