"""A script: what the start-up of this Python leaves in a process, file by file.

Run without arguments but the report's path, it starts the interpreter once more with ``-S``, so
that nothing of the start-up has happened there, and has it done with a look after each ``.pth``
file and each ``sitecustomize``: threads, libraries, modules, the start method. A watch that the
environment asks for begins before, so that it sees what these files do, too.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

MEASURED = "--measured"


def threads() -> set[tuple[int, str]]:
    """Return the threads beside the main one, by number and name."""
    found = set()
    for number in os.listdir("/proc/self/task"):
        if int(number) != os.getpid():
            try:
                with open(f"/proc/self/task/{number}/comm", encoding="utf-8") as file:
                    found.add((int(number), file.read().strip()))
            except OSError:  # it has ended since
                continue
    return found


def libraries() -> set[str]:
    """Return the shared libraries that are mapped; modules of Python are not among them."""
    found = set()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            name = path.rpartition("/")[2]
            if ".so" in name and ".cpython-" not in name and ".abi3." not in name:
                found.add(f"/{path}")
    return found


def start_method() -> str:
    """Return the start method that was chosen up to now; "" for none."""
    module = sys.modules.get("multiprocessing")
    return str(module.get_start_method(allow_none=True) or "") if module is not None else ""


class Looks:
    """What each file of the start-up has left."""

    def __init__(self) -> None:
        self.files: list[dict[str, Any]] = []

    def around(self, function: Callable[..., Any], name_of: Callable[..., str]) -> Any:
        """Return the function with a look before and after each call."""

        def looked(*args: Any) -> Any:
            before = threads(), libraries(), set(sys.modules), start_method()
            try:
                return function(*args)
            finally:
                self._note(name_of(*args), *before)

        return looked

    def _note(
        self,
        name: str,
        tasks: set[tuple[int, str]],
        mapped: set[str],
        modules: set[str],
        method: str,
    ) -> None:
        new = sorted(set(sys.modules) - modules)
        chosen = start_method()
        self.files.append(
            {
                "file": name,
                "threads": sorted(comm for _, comm in threads() - tasks),
                "libraries": sorted(libraries() - mapped),
                "modules": [each for each in new if "." not in each],
                "start_method": chosen if chosen != method else "",
            }
        )


def _customize(name: str) -> Callable[[], str]:
    """Return what says which file a ``sitecustomize`` was."""

    def path() -> str:
        return str(getattr(sys.modules.get(name), "__file__", "") or name)

    return path


def _begin_watch() -> None:
    """Begin the inherited watch, if any, before the start-up and not in the midst of it."""
    root = os.path.abspath(__file__)
    for _ in ("child", "doctor", "pytest_cudafork", "root"):
        root = os.path.dirname(root)
    startup = os.path.join(root, "pytest_cudafork", "_startup")
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != startup]
    before = list(sys.path)  # where the root may stand already
    sys.path.append(root)
    try:
        from pytest_cudafork.check.watch import begin_inherited
    finally:
        sys.path[:] = before
    begin_inherited()


def measure() -> list[dict[str, Any]]:
    """Do what the interpreter does at its start, and look after each file."""
    import site

    looks = Looks()
    namespace: dict[str, Any] = vars(site)
    for name, name_of in (
        ("addpackage", lambda folder, file, *rest: os.path.join(folder, file)),
        ("execsitecustomize", _customize("sitecustomize")),
        ("execusercustomize", _customize("usercustomize")),
    ):
        if name in namespace:  # a Python that lacks one is measured without it
            namespace[name] = looks.around(namespace[name], name_of)
    site.main()
    return _once(looks.files)


def _once(files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each file once: in a virtual environment Python reads ``.pth`` files twice.

    A ``sitecustomize`` that is not there is left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        first = found.setdefault(file["file"], file)
        for key, value in file.items():
            if first is not file and key != "file":
                first[key] = first[key] or value
    return [
        file
        for name, file in found.items()
        if os.path.isabs(name) or any(value for key, value in file.items() if key != "file")
    ]


def main(arguments: list[str]) -> None:
    """Measure in an interpreter of its own; the report is a file, as start-up files may print."""
    if arguments[1:] != [MEASURED]:
        import subprocess

        command = [sys.executable, "-S", os.path.abspath(__file__), arguments[0], MEASURED]
        subprocess.run(command, check=True)
        return
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    _begin_watch()
    files = measure()
    with open(arguments[0], "w", encoding="utf-8") as file:
        json.dump(files, file)


if __name__ == "__main__":
    main(sys.argv[1:])
