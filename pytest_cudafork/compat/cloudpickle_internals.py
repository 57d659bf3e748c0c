"""What the plugin uses of cloudpickle that has no public name."""

from __future__ import annotations


def remember_class(local_class: type) -> None:
    """Give a class that a function has made an identity, before it is pickled here or elsewhere.

    ``cloudpickle._get_or_create_tracker_id``: with it a class that comes back from a child is the
    class itself and not a copy of it.
    """
    from cloudpickle import cloudpickle

    cloudpickle._get_or_create_tracker_id(local_class)
