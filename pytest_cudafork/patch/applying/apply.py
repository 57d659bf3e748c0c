"""Applying one patch to this process: now, and whenever its module has been executed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pytest_cudafork.compat.unpatched import contextlib, os, pickle
from pytest_cudafork.observe.base.after_import import Required, after_import
from pytest_cudafork.observe.handed_on import STARTUP
from pytest_cudafork.patch.applying.records import ENVIRONMENT, Record
from pytest_cudafork.settings import environment

Undo = Callable[[], None]
_NOTHING: Any = object()
"""Stands for what was not there."""


class Loaded:
    """The key and the value of a patch where they are known as objects."""

    def __init__(self, key: Any = None, value: Any = None) -> None:
        self.key = key
        self.value = value


def apply(
    record: Record,
    loaded: Loaded | None = None,
    failed: Callable[[str], None] | None = None,
    beside: list[Place] | None = None,
) -> Undo:
    """Apply a patch now if its module is imported, and whenever that has been executed from now on.

    Args:
        record: The patch.
        loaded: Its key and value; None: they are unpickled when they are needed.
        failed: Told in words of what cannot be applied, before that is raised.
        beside: The places of patches that are undone together, in their order; this one's are
            added. One place may have several.

    Returns:
        What undoes it, in this process.

    Raises:
        AttributeError, KeyError, TypeError: What is to be replaced is not there, or no mapping has
            it, and the module is there. Where it is imported later, or executed again, its import
            raises this.

    """
    if record.kind in ENVIRONMENT:
        return _set_variable(record)
    places: list[Place] = []
    every = [] if beside is None else beside

    def patch(module: ModuleType) -> None:
        nonlocal loaded
        try:
            loaded = loaded or _load(record)
            place = _place(record, module, loaded)
            _fill(record, place, places, every)
        except Exception as error:
            if failed is not None:
                text = str(error.args[0]) if error.args else ""
                begins = "" if text.startswith(f"{record}") else f"{record}: "
                failed(f"{begins}{text} ({type(error).__name__})")
            raise

    forget = after_import(record.module, Required(patch))

    def undo() -> None:
        forget()
        while places:
            place = places.pop()
            place.restore()
            every.remove(place)

    return undo


def _fill(record: Record, place: Place, places: list[Place], every: list[Place]) -> None:
    """Fill a place, unless it is filled, and note it among the patch's own and among all of them.

    Raises:
        AttributeError, KeyError: There is nothing to be replaced.

    """
    former = next((one for one in places if one.owner is place.owner), None)
    if former is None:
        place.fill(record)
        places.append(place)
        every.append(place)
        return
    # the module has been executed again
    number = every.index(former)
    if any(one.is_same(former) and one.holds for one in every[number:]):
        return  # and has left this alone
    place.fill(record)
    places[places.index(former)] = every[number] = place  # what was there is the past


def _load(record: Record) -> Loaded:
    return Loaded(_unpickled(record.key, record.search), _unpickled(record.value, record.search))


def _unpickled(data: bytes, search: Sequence[str]) -> Any:
    """Return what a pickle holds, None for none; ``search`` is looked through last for modules.

    Raises whatever unpickling raises.
    """
    if not data:
        return None
    try:
        return pickle.loads(data)
    except ModuleNotFoundError:
        more = [entry for entry in search if entry not in sys.path]
        if not more:
            raise
    sys.path += more
    try:
        return pickle.loads(data)
    finally:
        for entry in more:
            with contextlib.suppress(ValueError):  # somebody has taken it out
                sys.path.remove(entry)


def _place(record: Record, module: Any, loaded: Loaded) -> Place:
    """Find what a patch replaces.

    Raises:
        AttributeError: There is nothing of that name on the way to it.
        TypeError: An item is to be set of what is no mapping.

    """
    names = record.path.split(".")
    new = loaded.value if record.kind.startswith("set") else _NOTHING
    if record.kind.endswith("item"):
        owner = _walk(record, module, names)
        if not hasattr(owner, "keys"):
            # What is in a list at a place could not be put back by asking whether it is in there.
            raise TypeError(f"{record}: {_named(owner)} is no mapping")
        return _Item(owner, loaded.key, new)
    return _Attribute(_walk(record, module, names[:-1]), names[-1], new)


def _walk(record: Record, owner: Any, names: list[str]) -> Any:
    """Return the object at the end of a path.

    Raises:
        AttributeError: There is none.

    """
    for name in names:
        owner = _own(record, owner, name)
    return owner


def _own(record: Record, owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError:
        raise AttributeError(f"{record}: {_named(owner)} has no attribute {name!r}") from None


def _named(owner: Any) -> str:
    return f"{type(owner).__name__} {getattr(owner, '__name__', repr(owner)[:200])!r}"


class Place:
    """A place that a patch fills or empties, and what was there."""

    def __init__(self, owner: Any, name: Any, new: Any) -> None:
        """``new`` is what the patch puts there; ``_NOTHING``: it empties the place."""
        self.owner = owner
        self.name = name
        self.new = new
        self._before = self.content

    @property
    def content(self) -> Any:
        """What is there, or ``_NOTHING``."""
        raise NotImplementedError

    def put(self, content: Any) -> None:
        """Make this the content; ``_NOTHING`` takes away what is there."""
        raise NotImplementedError

    def check(self, record: Record) -> None:
        """Raise what becomes of a patch that must not go without something to replace."""
        raise NotImplementedError

    def is_same(self, other: Place) -> bool:
        """Whether both are of one attribute or item."""
        return self.owner is other.owner and bool(self.name == other.name)

    @property
    def holds(self) -> bool:
        """Whether the patch is in force here."""
        return self.content is self.new

    def fill(self, record: Record) -> None:
        """Let the patch be in force."""
        self.check(record)
        self.put(self.new)

    def restore(self) -> None:
        """Let there be what was there."""
        self.put(self._before)


class _Attribute(Place):
    @property
    def content(self) -> Any:
        # What stands in it, not what it gives for it: a static method, what its class has, what a
        # module makes when it is asked. Else the undo would leave that behind.
        if _is_written_to_its_own(self.owner, self.name):
            return vars(self.owner).get(self.name, _NOTHING)
        return getattr(self.owner, self.name, _NOTHING)

    def put(self, content: Any) -> None:
        if content is not _NOTHING:
            setattr(self.owner, self.name, content)
        elif self.content is not _NOTHING:
            delattr(self.owner, self.name)

    def check(self, record: Record) -> None:
        if record.raising:
            _own(record, self.owner, self.name)
        inherited = self.new is _NOTHING and self.content is _NOTHING
        if inherited and hasattr(self.owner, self.name):
            raise AttributeError(
                f"{record}: {_named(self.owner)} does not hold {self.name!r} itself, so that it "
                "cannot be removed there: name what holds it, as its class or a base of that"
            )


_PLAIN: Any = [(one.__setattr__, one.__delattr__) for one in (object, ModuleType)]
"""How attributes are set and removed where nobody has thought of something else."""


def _is_written_to_its_own(owner: Any, name: str) -> bool:
    """Whether an attribute that is set goes to what ``vars`` shows of its owner."""
    kind: Any = type(owner)
    if isinstance(owner, type):
        return True
    if (kind.__setattr__, kind.__delattr__) not in _PLAIN:
        return False
    if not isinstance(getattr(owner, "__dict__", None), dict):
        return False
    held = next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
    return not hasattr(type(held), "__set__")


class _Item(Place):
    @property
    def content(self) -> Any:
        if self.name not in self.owner:
            return _NOTHING
        return self.owner[self.name]

    def put(self, content: Any) -> None:
        if content is not _NOTHING:
            self.owner[self.name] = content
        elif self.name in self.owner:
            del self.owner[self.name]

    def check(self, record: Record) -> None:
        if record.kind == "delitem" and record.raising and self.content is _NOTHING:
            raise KeyError(f"{record}: there is no such key")


def _set_variable(record: Record) -> Undo:
    name = record.path
    undo = contextlib.ExitStack()
    if record.kind == "setenv":
        environment.set_variable(undo, name, os.fsdecode(record.value))
    elif environment.is_set(name):
        environment.unset_variable(undo, name)
    elif record.raising:
        raise KeyError(f"{record}: there is no such variable")
    if name == environment.PYTHON_PATH:  # the way of all patches to the children, too
        environment.prepend_path(undo, name, STARTUP)
    return undo.close
