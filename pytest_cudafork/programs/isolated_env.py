"""The environment with which a program is started apart from this process, and who heeds it.

A variable isolates nothing by itself: each is a word to one reader. ``READERS`` says to whom.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_cudafork.settings import METHODS, environment
from pytest_cudafork.settings.arguments import check_variable, check_variables
from pytest_cudafork.settings.environment import COMMON_METHOD, VLLM_METHOD

TOKENIZERS = "TOKENIZERS_PARALLELISM"

READERS = {
    VLLM_METHOD: "vLLM, for its engine core and its workers, and engines that follow it; not "
    "multiprocessing",
    COMMON_METHOD: "programs that look for it by themselves; not Python: multiprocessing reads no "
    "variable, and vLLM does not read this one",
    environment.VISIBLE_GPUS: "the CUDA driver, once, when it is initialized in a "
    "process; it hides GPUs and changes no start method",
    TOKENIZERS: "the tokenizers library of Hugging Face; with 'false' it starts no threads, which "
    "a later fork would lose",
    environment.LEDGER: "Python programs that are watched (not those run with -I, -E or -S): they "
    "write there what touches CUDA, forks and starts processes",
}
"""Of each variable, who reads it and who does not."""


class IsolatedEnv(dict[str, str]):
    """A whole environment, to be handed to ``subprocess`` or ``os.execve``.

    uvloop takes nothing but a plain dictionary: give it ``dict(env)``.

    Attributes:
        changed: Of each variable that differs from this process's, the value before and after;
            None: it is not set.
        honored: Of each variable that isolates, who reads it, in words (``READERS``); of those that
            are not set here, what that means.

    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        super().__init__(variables)
        self.changed = changes(os.environ, self)
        self.honored = {
            name: words if name in self else f"not set; read by {words}"
            for name, words in READERS.items()
        }


def isolated_env(
    *,
    method: str | None = "spawn",
    base: Mapping[str, str | None] | None = None,
    **more: str | None,
) -> IsolatedEnv:
    """Return an environment for a program that is to use CUDA and start processes of its own.

    It asks for a start method, lets tokenizers start no threads, and keeps everything else: the
    GPUs that this process may see (``CUDA_VISIBLE_DEVICES``; not set: all), and the ledger, where
    this process is watched. It says which of that is heeded by whom: see ``IsolatedEnv.honored``.

    Args:
        method: The start method to ask for: "fork", "forkserver" or "spawn"; None leaves the
            variables for it as they are.
        base: The environment to begin with; None: this process's. What is None in it is not set.
        **more: Further variables, over all others; None takes one away.

    Raises:
        TypeError: ``base`` is no mapping, or a variable's value is neither a text nor None.
        ValueError: There is no such method, or a name or value that no environment can hold.

    """
    if base is not None:
        check_variables("base", base)
    return IsolatedEnv(compose(method, os.environ if base is None else base, more))


def compose(
    method: str | None, base: Mapping[str, str | None], more: Mapping[str, str | None]
) -> dict[str, str]:
    """Put the variables together; arguments and errors are those of ``isolated_env``."""
    if method is not None and method not in METHODS:
        raise ValueError(f"{method!r} is no start method: use one of {', '.join(METHODS)}, or None")
    variables = {name: text for name, text in base.items() if text is not None}
    if method is not None:
        variables[VLLM_METHOD] = variables[COMMON_METHOD] = method
    variables[TOKENIZERS] = "false"
    for name, text in more.items():
        if text is None:
            variables.pop(name, None)
        else:
            check_variable(name, text)
            variables[name] = text
    return variables


def changes(
    before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """Return what differs between two environments: value before and after, None: not set."""
    names = sorted(before.keys() | after.keys())
    pairs = ((name, (before.get(name), after.get(name))) for name in names)
    return {name: pair for name, pair in pairs if pair[0] != pair[1]}
