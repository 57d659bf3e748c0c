"""A job that is profiled."""

from profiler.trace import register_job
from profiler.worker import run_in_worker


def test_a_job_has_a_name():
    assert run_in_worker(register_job, "train") == "train:daemon"
