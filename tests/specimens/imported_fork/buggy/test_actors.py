"""Tasks run in workers."""

from actors import tasks
from actors.pool import run


def test_a_task_runs_in_a_worker():
    assert run(tasks.describe, "abc") == "a-b-c"
