"""The faults of the campaign, read from ``fault_cases.toml``, and one for each signal that ends."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KINDS = ("crashes", "hangs", "left", "surroundings", "errors")
_FILE = Path(__file__).with_suffix(".toml")
_SIGNALS = (
    *("SEGV", "ABRT", "BUS", "FPE", "ILL", "KILL", "TERM", "HUP", "USR1", "USR2", "ALRM"),
    *("TRAP", "SYS", "XCPU", "VTALRM", "PROF", "QUIT"),
)


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        name: its name.
        body: the statements.
        outcome: what must be reported of the test; "error" for its set-up or teardown.
        word: what our report must say; other plugins have words of their own.
        where: the phase in which the statements run.
        kind: which of ``KINDS`` it is.

    """

    name: str
    body: str
    outcome: str = "failed"
    word: str = ""
    where: str = "call"
    kind: str = ""


def faults() -> list[Fault]:
    """Return all of them, in the order of the table."""
    signals = [
        Fault(
            f"sig{name.lower()}",
            f"os.kill(os.getpid(), signal.SIG{name})\n",
            word=f"SIG{name} in call",
            kind="crashes",
        )
        for name in _SIGNALS
    ]
    found: dict[str, list[dict[str, Any]]] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return [*signals, *(Fault(**each, kind=kind) for kind in KINDS for each in found[kind])]
