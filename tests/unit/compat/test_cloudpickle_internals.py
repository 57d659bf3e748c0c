"""The one name of cloudpickle."""

from __future__ import annotations

import pickle

from cloudpickle import cloudpickle

from pytest_cudafork.compat import cloudpickle_internals
from tests.unit.compat import require


def test_a_local_class_comes_back_as_itself() -> None:
    require("cloudpickle", cloudpickle, "_get_or_create_tracker_id", "classes that come back")

    class Local:
        pass

    cloudpickle_internals.remember_class(Local)
    assert pickle.loads(cloudpickle.dumps(Local)) is Local
