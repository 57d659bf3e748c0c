"""With whom an engine shares KV blocks, under vLLM's names: :class:`KVTransferConfig`.

It is at the bottom, beside ``config``: nothing here knows a store.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sample_engine.errors import ConfigError

__all__ = ["CONNECTORS", "FAILURE_POLICIES", "ROLES", "KVTransferConfig"]

ROLES = ("kv_producer", "kv_consumer", "kv_both")
FAILURE_POLICIES = ("recompute", "fail")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FOREIGN = "LMCacheConnectorV1"
_HOW = "for instance {'kv_connector': 'SharedMemoryConnector', 'kv_role': 'kv_both'}"


class _Extra(NamedTuple):
    """A setting of one connector: its default, what it must be, and whether a value is that."""

    default: Any
    must: str
    fits: Callable[[Any], bool]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


CONNECTORS: Mapping[str, Mapping[str, _Extra]] = MappingProxyType(
    {
        "SharedMemoryConnector": {
            "name": _Extra(
                "default",
                "1 to 64 letters, digits, '.', '_' and '-'",
                lambda value: isinstance(value, str) and bool(_NAME.fullmatch(value)),
            ),
            "max_bytes": _Extra(1 << 30, "a whole number of at least 1", _is_size),
            "directory": _Extra(
                "/dev/shm",
                "an absolute path",
                lambda value: isinstance(value, str) and value.startswith("/"),
            ),
        },
        "RedisConnector": {
            "url": _Extra(
                "redis://127.0.0.1:6379/0",
                "a URL that begins with redis://, rediss:// or unix://",
                lambda value: (
                    isinstance(value, str)
                    and value.startswith(("redis://", "rediss://", "unix://"))
                ),
            ),
            "timeout_seconds": _Extra(
                1.0,
                "a number of seconds above 0 and at most 600",
                lambda value: _is_number(value) and 0 < value <= 600,
            ),
            "ttl_seconds": _Extra(86400, "a whole number of seconds of at least 1", _is_size),
        },
    }
)
"""The connectors, and what ``kv_connector_extra_config`` may hold for each."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KVTransferConfig:
    """With whom an engine shares its KV blocks, under vLLM's names.

    ``kv_connector`` says where blocks are kept: ``"SharedMemoryConnector"`` on this host,
    ``"RedisConnector"`` on a Redis server. ``kv_role``: a ``"kv_producer"`` only stores, a
    ``"kv_consumer"`` only fetches. ``kv_load_failure_policy``: what becomes of a request while the
    store does not work; ``"recompute"`` goes on without it and logs that, ``"fail"`` refuses the
    request. ``kv_connector_extra_config`` has the connector's own settings (:data:`CONNECTORS`).

    Raises :class:`ConfigError` that says all that is wrong, by name.
    """

    kv_connector: str = "SharedMemoryConnector"
    kv_role: str = "kv_both"
    kv_load_failure_policy: str = "recompute"
    kv_connector_extra_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what is no word or out of range, all of it in one message."""
        wrong = list(_wrong(self))
        if wrong:
            raise ConfigError("\n".join(f"kv_transfer_config: {words}" for words in wrong))

    @classmethod
    def of(cls, settings: KVTransferConfig | Mapping[str, Any]) -> KVTransferConfig:
        """The configuration of a mapping; one that is made already stays as it is.

        A key whose value is None counts as not given.
        """
        if isinstance(settings, cls):
            return settings
        if not isinstance(settings, Mapping):
            text = " This is text: json.loads makes a dict of it." * isinstance(settings, str)
            raise ConfigError(
                f"kv_transfer_config={settings!r} must be a dict, {_HOW}, a KVTransferConfig, or "
                f"None.{text}"
            )
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [_unknown(name, known) for name in settings if name not in known]
        if unknown:
            raise ConfigError("\n".join(unknown))
        return cls(**{name: value for name, value in settings.items() if value is not None})

    @property
    def extra(self) -> dict[str, Any]:
        """The connector's own settings, those that were not given at their defaults."""
        defaults = {name: one.default for name, one in CONNECTORS[self.kv_connector].items()}
        return {**defaults, **self.kv_connector_extra_config}

    @property
    def stores(self) -> bool:
        """Whether the engine stores blocks."""
        return self.kv_role != "kv_consumer"

    @property
    def fetches(self) -> bool:
        """Whether the engine fetches blocks."""
        return self.kv_role != "kv_producer"


def _unknown(name: object, known: list[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"kv_transfer_config has no setting {name!r}.{hint} It has: {', '.join(known)}."


def _wrong(config: KVTransferConfig) -> list[str]:
    """What is wrong with the values, a line each."""
    found = []
    for name, allowed in (
        ("kv_connector", tuple(CONNECTORS)),
        ("kv_role", ROLES),
        ("kv_load_failure_policy", FAILURE_POLICIES),
    ):
        value = getattr(config, name)
        if isinstance(value, str) and value in allowed:
            continue
        close = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        if value == _FOREIGN:
            hint = " LMCache is not part of this engine: these two do its job."
        found.append(f"{name}={value!r} is not one of {', '.join(map(repr, allowed))}.{hint}")
    return found + _wrong_extra(config.kv_connector, config.kv_connector_extra_config)


def _wrong_extra(connector: str, extra: object) -> list[str]:
    """What is wrong with a connector's own settings, a line each."""
    if not isinstance(extra, Mapping):
        return [f"kv_connector_extra_config={extra!r} must be a dict."]
    settings = CONNECTORS.get(connector) if isinstance(connector, str) else None
    if settings is None:
        return []
    found = []
    for name, value in extra.items():
        if name not in settings:
            close = difflib.get_close_matches(str(name), settings, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            found.append(
                f"kv_connector_extra_config has {name!r}, which {connector} does not know.{hint} "
                f"It has: {', '.join(settings)}."
            )
        elif not settings[name].fits(value):
            found.append(
                f"kv_connector_extra_config: {name}={value!r} must be {settings[name].must}."
            )
    return found
