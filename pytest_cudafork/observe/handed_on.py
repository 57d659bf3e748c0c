"""The watch as it is handed on to other processes: its settings, and the variables they travel in.

A Python process that is started by exec finds ``_startup/sitecustomize.py`` on its path, which
begins the watch that the variables describe.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pytest_cudafork.compat import written_in_c
from pytest_cudafork.compat.unpatched import os
from pytest_cudafork.settings import environment

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(_PACKAGE)
"""The folder that holds the package."""
STARTUP = os.path.join(_PACKAGE, "_startup")
"""The folder of the ``sitecustomize``."""

_write_json = written_in_c.json_writer()
_read_json = written_in_c.json_reader()


class WatchSettings(NamedTuple):
    """What every process of a session has to know.

    ``device`` is "real", "none", or the phantom's face: "absent", "sm_90x2". With ``detailed``
    every process also tells with which eyes it is watched, of forks that are harmless, and of what
    ``multiprocessing`` starts.
    """

    ledger: str
    device: str
    level: str
    allow: tuple[str, ...] = ()
    detailed: bool = False

    def to_text(self) -> str:
        """One line for the environment."""
        return _write_json(self._asdict())

    @classmethod
    def from_text(cls, text: str) -> WatchSettings:
        """Read ``to_text``'s line.

        Raises:
            ValueError: the line is not one of ours.

        """
        try:
            data = _read_json(text, None)
            return cls(
                data["ledger"],
                data["device"],
                data["level"],
                tuple(data["allow"]),
                bool(data.get("detailed", False)),
            )
        except (KeyError, TypeError, StopIteration, RecursionError) as error:
            raise ValueError(f"{environment.WATCH} holds {text!r}: {error!r}") from None


def variables_for_program(
    settings: WatchSettings, owner: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables by which a Python program inherits a watch that is not this process's.

    Args:
        settings: The watch.
        owner: The process for which it is.
        environ: The environment that the program would have otherwise.

    """
    path = environ.get(environment.PYTHON_PATH, "")
    folders = [folder for folder in path.split(os.pathsep) if folder != STARTUP] if path else []
    return {
        environment.LEDGER: settings.ledger,
        environment.OWNER: owner,
        environment.WATCH: settings.to_text(),
        environment.ROOT: ROOT,
        environment.PYTHON_PATH: os.pathsep.join([STARTUP, *folders]),
    }
