"""What the plugin uses of cloudpickle that has no public name."""

from __future__ import annotations

from types import CodeType
from typing import Any

from cloudpickle import CloudPickler, cloudpickle

from pytest_cudafork.compat.unpatched import io

_NO_FILE = "<dynamic-code>"


def remember_class(local_class: type) -> None:
    """Give a class that a function has made an identity, before it is pickled here or elsewhere.

    ``cloudpickle._get_or_create_tracker_id``: with it a class that comes back from a child is the
    class itself and not a copy of it.
    """
    cloudpickle._get_or_create_tracker_id(local_class)


class FilePickler(CloudPickler):  # type: ignore[misc]  # cloudpickle has no types
    """Pickles code with the name of its file, which tracebacks and warnings are to have.

    Since 3.1.3 cloudpickle leaves it out (``cloudpickle._code_reduce``), so that equal code has
    equal pickles.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Return how an object is pickled."""
        if isinstance(obj, CodeType):
            make, parts = cloudpickle._code_reduce(obj)
            return make, tuple(obj.co_filename if each == _NO_FILE else each for each in parts)
        return super().reducer_override(obj)


def dumps(value: Any, pickler: type[FilePickler] = FilePickler) -> bytes:
    """Return the pickle of a value, in which code bears the name of its file."""
    with io.BytesIO() as file:
        pickler(file).dump(value)
        return file.getvalue()
