"""The errors of the engine that callers filter on.

*Recoverable*: this request or this call is refused, the engine goes on. *Unrecoverable*: the engine
has to be made anew.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BackendUnavailableError",
    "ConfigError",
    "EngineDeadError",
    "EngineError",
    "GraphCaptureError",
    "KVTransferError",
    "NotFiniteError",
    "PromptError",
    "RankLostError",
    "RemoteError",
    "WeightsError",
]


class EngineError(Exception):
    """What all errors of the engine are. Recoverable unless the class says otherwise."""

    __module__ = "sample_engine"


class ConfigError(EngineError, ValueError):
    """A value that no engine can be made of. Recoverable: nothing was made."""

    __module__ = "sample_engine"


class PromptError(EngineError, ValueError):
    """A prompt or sampling parameter that is refused. Recoverable: other requests go on.

    ``param`` is the first parameter that is wrong; "": it is the prompt, or has no name.
    """

    __module__ = "sample_engine"

    def __init__(self, *words: object, param: str = "") -> None:
        super().__init__(*words)
        self.param = param


class BackendUnavailableError(ConfigError):
    """An attention backend that is unknown or cannot run here. Recoverable; names the others."""

    __module__ = "sample_engine"


class WeightsError(EngineError):
    """Weights that are missing, corrupt, of another shape or not finite. No engine is made."""

    __module__ = "sample_engine"


class GraphCaptureError(EngineError):
    """A graph could not be captured: which, and why. The device is usable; no engine is made."""

    __module__ = "sample_engine"


class RankLostError(EngineError):
    """A rank of a tensor parallel engine does not answer the others. Unrecoverable.

    It ends the rank that raises it; callers get an :class:`EngineDeadError` that says what became
    of the lost one.
    """

    __module__ = "sample_engine"


class KVTransferError(EngineError):
    """Shared KV blocks cannot be had, and ``kv_load_failure_policy`` is ``"fail"``.

    Recoverable; at the start no engine is made.
    """

    __module__ = "sample_engine"


class NotFiniteError(EngineError):
    """The model gave NaN or infinity where a token was to be chosen. Recoverable.

    The request ends, and no prompt is to blame: the weights are, or a type too narrow for them.
    """

    __module__ = "sample_engine"


class RemoteError(EngineError):
    """An error in the engine-core process, with its traceback as text. Unrecoverable.

    ``outputs`` are those of the call's requests that had finished.
    """

    __module__ = "sample_engine"
    outputs: tuple[Any, ...] = ()


class EngineDeadError(EngineError):
    """The engine-core process is gone: why, as far as it is known. Unrecoverable.

    ``outputs`` are those of the call's requests that had finished.
    """

    __module__ = "sample_engine"
    outputs: tuple[Any, ...] = ()
