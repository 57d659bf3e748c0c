"""The report that `ds_report` prints."""

import deepspeed
from deepspeed.worker import run_in_worker


def test_cpu_adam_can_be_built_anywhere():
    assert run_in_worker(deepspeed.report)["cpu_adam"]
