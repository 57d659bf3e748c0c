"""The options of the import audit: their table, and the readers of their values.

The same table serves pytest (``--cuda-fork-imports-...``, the environment, the ini file) and the
audit's own command line.
"""

from __future__ import annotations

import math
import os
import re
import sys
from typing import Any

import pytest

from pytest_cudafork.settings.import_settings import ImportSettings
from pytest_cudafork.settings.option import Option, Table, parse_file, parse_modules, read_table
from pytest_cudafork.settings.option_texts import number_in

YES = ("yes", "true", "on", "1")
NO = ("no", "false", "off", "0")
_PATTERN = r"[\w.*?\[\]!-]+"  # compiled for the first of them


_DEFAULTS = ImportSettings()

PACKAGES = Option(
    "cuda_fork_imports",
    "PKG",
    "Import every module of a package in a process of its own, and fail those that initialize "
    "CUDA. PKG: one or more packages, separated by commas (in the ini file one a line). On the "
    "command line, without paths, the audit is all that runs.",
    lines=True,
)
EXCLUDE = Option(
    "cuda_fork_imports_exclude",
    "PATTERN",
    "Modules to leave out of the import audit, as in pkg.tests or '*.test_*'; separated by "
    "commas, in the ini file one a line.",
    lines=True,
)
STRICT = Option(
    "cuda_fork_imports_strict",
    "YES",
    "Fail a module that cannot be imported instead of skipping it.",
    flag_value="yes",
)
BASELINE = Option(
    "cuda_fork_imports_baseline",
    "FILE",
    "A TOML file of modules that initialize CUDA today and are accepted (xfail).",
)
UPDATE = Option(
    "cuda_fork_imports_update",
    "YES",
    "Write the baseline anew at the end of the audit.",
    flag_value="yes",
)
WITHOUT = Option(
    "cuda_fork_imports_without",
    "LIB",
    "Audit every module once more with a library hidden, so that it looks not installed; more "
    "than one separated by commas (in the ini file one a line), a+b to hide both at once.",
    lines=True,
)
GRAPH = Option(
    "cuda_fork_imports_graph",
    "FILE",
    "Draw who imports whom, and what initializes CUDA: FILE.html or FILE.dot.",
)
TIMEOUT = Option(
    "cuda_fork_imports_timeout",
    "SECONDS",
    f"Seconds that the import of one module may take (default: {_DEFAULTS.timeout:g}).",
)
JOBS = Option(
    "cuda_fork_imports_jobs",
    "N",
    "Modules to import at the same time: auto (default: one a core, the cores divided among the "
    "workers of pytest-xdist) or a number.",
)
MEMORY = Option(
    "cuda_fork_imports_memory",
    "SIZE",
    "Memory that the import of one module may use, as in 4G (default: no limit).",
)
SINCE = Option(
    "cuda_fork_imports_since",
    "REF",
    "Import only the modules that files changed since a commit of git can reach, as far as the "
    "last audit with this option tells; otherwise all.",
)


def read_imports(
    config: pytest.Config, namespace: Any, *, elsewhere: bool = False
) -> ImportSettings:
    """Merge all sources; the arguments are those of ``options.read_settings``.

    Raises:
        pytest.UsageError: a value is not one of those allowed, or the baseline is to be written
            and none is named, or the command line says how to audit and nothing says what.

    """
    values = read_table(config, namespace, PARSERS)
    settings = ImportSettings(**values)
    if elsewhere:
        return settings
    try:
        check(settings)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if "packages" not in values:  # an empty text on the command line says that nothing is audited
        _check_used(namespace)
    return settings


def _check_used(namespace: Any) -> None:
    """Check that the command line has nothing that is in vain without a package to audit.

    In the environment and the ini file it waits for sessions that name one.

    Raises:
        pytest.UsageError: it has.

    """
    for option in IMPORT_OPTIONS:
        if getattr(namespace, option.name, None):
            raise pytest.UsageError(
                f"{option.flag}: no package is audited: name it with {PACKAGES.flag}=PKG"
                f" ({PACKAGES.flag}=: leave it so). In the ini file, {option.name} waits for one"
            )


def check(
    settings: ImportSettings, update: str = UPDATE.flag, baseline: str = BASELINE.flag
) -> None:
    """Check that the settings go together; ``update`` and ``baseline`` are the options' names.

    Raises:
        ValueError: they do not.

    """
    if settings.packages and sys.platform != "linux":
        raise ValueError(f"the import audit works on Linux only (this is {sys.platform})")
    if settings.update and not settings.baseline:
        raise ValueError(f"{update}: there is no file to write: name it with {baseline}=FILE")
    folder = os.path.dirname(settings.graph)
    if folder and not os.path.isdir(folder):
        raise ValueError(f"the graph cannot be written: there is no folder {folder!r}")


def parse_flag(text: str) -> bool:
    """Read yes or no.

    Raises:
        ValueError: it is neither.

    """
    if text.lower() in YES:
        return True
    if text.lower() in NO:
        return False
    raise ValueError(f"{text!r} is neither yes nor no: use {', '.join((*YES, *NO))}")


def parse_patterns(text: str) -> tuple[str, ...]:
    """Read patterns of module names separated by commas.

    Raises:
        ValueError: one of them can match no module name.

    """
    patterns = tuple(part.strip() for part in text.split(",") if part.strip())
    for pattern in patterns:
        if not re.fullmatch(_PATTERN, pattern):
            raise ValueError(
                f"{pattern!r} is not a pattern of module names: write pkg.sub or '*.test_*'"
            )
    return patterns


def parse_libraries(text: str) -> tuple[str, ...]:
    """Read what to hide: names, or several joined by a plus sign, separated by commas.

    Raises:
        ValueError: one of them is not a dotted name.

    """
    libraries = []
    for group in text.split(","):
        if group.strip():
            names = [parse_modules(name) for name in group.split("+")]
            if not all(len(name) == 1 for name in names):
                raise ValueError(f"{group.strip()!r} is not a library: write lib, or lib+other")
            libraries.append("+".join(name for (name,) in names))
    return tuple(dict.fromkeys(libraries))


def parse_graph(text: str) -> str:
    """Read the file of the picture; "" stays, and means none.

    Raises:
        ValueError: its ending names no format.

    """
    if text and not text.endswith((".html", ".dot")):
        raise ValueError(f"{text!r} is not a picture: name a file that ends in .html or .dot")
    return parse_file(text)


def parse_seconds(text: str) -> float:
    """Read a time limit.

    Raises:
        ValueError: it is not a number above 0.

    """
    seconds = number_in(text)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{text!r} is not a number of seconds above 0")
    return seconds


def parse_jobs(text: str) -> int:
    """Read a number of processes; 0 stands for "auto".

    Raises:
        ValueError: it is neither.

    """
    if text == "auto":
        return 0
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ValueError(f"{text!r} is not a number of processes: use auto, or a number above 0")
    return int(text)


def parse_ref(text: str) -> str:
    """Read the name of a commit; whether there is one, git knows.

    Raises:
        ValueError: it is empty, or an option of git's.

    """
    if not text.strip() or text.startswith("-"):
        raise ValueError(f"{text!r} is not the name of a commit, such as main or HEAD~1")
    return text.strip()


def parse_size(text: str) -> int:
    """Read a size in bytes, for instance ``4G``; 0 stands for no limit.

    Raises:
        ValueError: it is no size.

    """
    from pytest_cudafork.settings.sizes import read_size

    try:
        return read_size(text)
    except ValueError as error:
        raise ValueError(f"{error} (0: no limit)") from None


PARSERS: Table = {
    "packages": (PACKAGES, parse_modules),
    "exclude": (EXCLUDE, parse_patterns),
    "strict": (STRICT, parse_flag),
    "baseline": (BASELINE, parse_file),
    "update": (UPDATE, parse_flag),
    "without": (WITHOUT, parse_libraries),
    "graph": (GRAPH, parse_graph),
    "timeout": (TIMEOUT, parse_seconds),
    "jobs": (JOBS, parse_jobs),
    "memory": (MEMORY, parse_size),
    "since": (SINCE, parse_ref),
}
"""Every option with the reader of its value, by the field of ``ImportSettings`` that holds it."""

IMPORT_OPTIONS = tuple(option for option, _ in PARSERS.values())
