"""What every process of an audit needs to know, as one frozen value."""

from __future__ import annotations

from typing import Any, NamedTuple

from pytest_cudafork.settings.import_settings import ImportSettings

DEFAULT_FACE = "sm_90"
_DEFAULTS = ImportSettings()


class AuditSettings(NamedTuple):
    """How modules are imported.

    Attributes:
        device: What the modules find: "real", or a face of the phantom driver such as "sm_90x2".
        without: A library that is to look not installed, or "".
        timeout: Seconds that the import of one module may take; ask ``limit_of``.
        jobs: How many modules are imported at the same time.
        memory: Bytes that one import may hold beyond what it was forked with; 0: no limit.
        traces: Whether to look what an import reads of the environment, and what it leaves open.
        files: Whether to take note of the files that an import executes and reads.
        package: The package that is audited; "" before that is known.

    """

    device: str = DEFAULT_FACE
    without: str = ""
    timeout: float = _DEFAULTS.timeout
    jobs: int = 1
    memory: int = _DEFAULTS.memory
    traces: bool = False
    files: bool = False
    package: str = ""

    def is_in_each_import(self, module: str) -> bool:
        """Whether the import of any module of the package begins with this one."""
        return f"{self.package}.".startswith(f"{module}.")

    def limit_of(self, module: str) -> float:
        """Return how many seconds the import of a module may take.

        Everybody who waits for an import asks here, so this is the place to give some modules a
        limit of their own.
        """
        return self.timeout

    @property
    def longest_limit(self) -> float:
        """The longest of the limits: how long a fork server may be busy with any one module."""
        return self.timeout

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        return self._asdict()

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> AuditSettings:
        """Read what ``to_plain`` returned."""
        return cls(**data)
