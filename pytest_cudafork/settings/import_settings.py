"""What the options say of the import audit, as one frozen value with its defaults.

A module of its own, as the processes of the audit take their defaults from here and import no
pytest.
"""

from typing import NamedTuple


# Annotations of this module are no texts: NamedTuple compiles each, while the plugin is imported.
class ImportSettings(NamedTuple):
    """What the options say of the import audit.

    Attributes:
        packages: The packages to audit; none: no audit.
        exclude: Patterns of modules to leave out.
        strict: Whether a module that cannot be imported is an error.
        baseline: The file of accepted modules, or "".
        update: Whether to write that file anew.
        without: Libraries to hide, one after the other; "a+b" hides both at once.
        graph: The file for the picture, or "".
        timeout: Seconds that the import of one module may take.
        jobs: How many modules to import at the same time; 0: as many as there are cores.
        memory: Bytes that one import may hold beyond what it was forked with; 0: no limit.
        since: The commit since which changes count, or "".

    """

    packages: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    strict: bool = False
    baseline: str = ""
    update: bool = False
    without: tuple[str, ...] = ()
    graph: str = ""
    timeout: float = 120.0
    jobs: int = 0
    memory: int = 0
    since: str = ""
