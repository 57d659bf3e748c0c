"""What all messages have in common: their fields, and how these are looked at on arrival.

The kinds are in ``messages.py`` and ``server_messages.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pytest_cudafork.compat.unpatched import builtins
from pytest_cudafork.process.protocol import frames

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[type], type]:
        """Tell a type checker that subclasses are like dataclasses; new in Python 3.11."""
        return lambda cls: cls


KINDS: dict[str, type[Message]] = {}
"""The class of each kind of message, by the word that stands for it in a frame."""

_Class = TypeVar("_Class", bound="type[Message]")
_Message = TypeVar("_Message", bound="Message")


_TYPES: dict[str, type] = {
    "Any": object,
    "None": type(None),
    "bool": bool,
    "bytes": bytes,
    "dict[str, Any]": dict,
    "float": float,
    "int": int,
    "list[Any]": list,
    "list[str]": list,
    "str": str,
}
"""What a field may be annotated with. Looked up by the annotation's text: to evaluate it takes
``typing`` a millisecond, which every child that is forked would spend once more."""


@dataclass_transform(frozen_default=True)
class Message:
    """What all messages have in common: they are like frozen dataclasses.

    They are none, because ``dataclass`` compiles some methods for each class: a third of a
    millisecond, for some forty classes, in each process of ours that starts.
    """

    kind: ClassVar[str]
    types: ClassVar[dict[str, tuple[str, ...]]]
    """What each field may be: texts of ``_TYPES``."""
    defaults: ClassVar[dict[str, Any]]

    def __init__(self, *values: Any, **named: Any) -> None:
        """Take the fields, in their order or by name.

        Raises:
            TypeError: One is missing, given twice, or there is no such field.

        """
        if not values and named.keys() == self.types.keys():
            self.__dict__.update({name: named[name] for name in self.types})
            self.__post_init__()
            return
        given = dict(builtins.zip(self.types, values, strict=False))
        wrong = [*values[len(given) :], *(given.keys() & named), *(named.keys() - self.types)]
        fields = {**self.defaults, **given, **named}
        missing = self.types.keys() - fields
        if wrong or missing:
            problem = f"misses {sorted(missing)}" if missing else f"cannot take {wrong!r:.200}"
            raise TypeError(f"{type(self).__name__} {problem}")
        self.__dict__.update({name: fields[name] for name in self.types})
        self.__post_init__()

    def __post_init__(self) -> None:
        """Look at the fields together, where the type of each does not say all."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse it."""
        raise AttributeError(f"{type(self).__name__} is frozen: its {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        """Refuse it."""
        raise AttributeError(f"{type(self).__name__} is frozen: its {name} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        """Whether it is a message of the same kind with equal fields."""
        if type(other) is not type(self):
            return NotImplemented
        return self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        """Go by the fields, all of which must be hashable."""
        return hash((self.kind, *self.__dict__.values()))

    def __repr__(self) -> str:
        """Return the call that makes it."""
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"{type(self).__name__}({fields})"

    def changed(self: _Message, **fields: Any) -> _Message:
        """Return a message of the same kind in which these fields are others."""
        return type(self)(**{**self.__dict__, **fields})

    def to_plain(self) -> frames.Plain:
        """Return it as plain data for a frame."""
        return {"kind": self.kind, **self.__dict__}


def of_kind(kind: str) -> Callable[[_Class], _Class]:
    """Enter a class of messages under its word."""

    def enter(cls: _Class) -> _Class:
        cls.kind = kind
        cls.types = {
            name: tuple(annotation.split(" | "))
            for name, annotation in cls.__annotations__.items()
            if not annotation.startswith("ClassVar")
        }
        unknown = {one for parts in cls.types.values() for one in parts} - _TYPES.keys()
        assert not unknown, f"{cls.__name__}: no check for {unknown}"
        cls.defaults = {name: vars(cls)[name] for name in cls.types if name in vars(cls)}
        KINDS[kind] = cls
        return cls

    return enter


def checked(cls: type[Message], fields: dict[str, Any]) -> Message:
    """Make a message of its fields, whose types are looked at.

    Raises:
        TypeError: A field is missing, too many, or not what its annotation says.

    """
    for name, value in fields.items():
        allowed = cls.types.get(name)
        if allowed is not None and not _is_one_of(value, allowed):
            raise TypeError(f"{name} is {value!r:.200}")
    return cls(**fields)


def _is_one_of(value: Any, allowed: tuple[str, ...]) -> bool:
    # Not any(): Ctrl-C while Python closes a generator is lost, and messages are read all the time.
    for one in allowed:  # noqa: SIM110
        if _is(value, one):
            return True
    return False


def _is(value: Any, annotation: str) -> bool:
    if annotation == "list[str]":
        return isinstance(value, list) and all(isinstance(part, str) for part in value)
    return isinstance(value, _TYPES[annotation])
