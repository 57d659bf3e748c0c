"""Owns what an audit is told: a frozen value for every process that takes part. Pure.

It does not know where the values come from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DEFAULT_TIMEOUT = 120.0
DEFAULT_FACE = "sm_90"


class AuditSettings(NamedTuple):
    """How modules are imported.

    Attributes:
        device: What the modules find: "real", or a face of the phantom driver such as "sm_90x2".
        without: A library that is to look not installed, or "".
        timeout: Seconds that the import of one module may take.
        jobs: How many modules are imported at the same time.
        memory: Bytes that one import may hold beyond what it was forked with; 0: no limit.

    """

    device: str = DEFAULT_FACE
    without: str = ""
    timeout: float = DEFAULT_TIMEOUT
    jobs: int = 1
    memory: int = 0

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self._asdict()

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> AuditSettings:
        """Read what ``to_plain`` returned."""
        return cls(**data)
