"""The engine starts in a process of its own for each test."""

import torch
from engine.llm import start_engine
from engine.testing import fork_new_process_for_each_test


def test_a_machine_without_gpu_is_no_error():
    assert torch.cuda.is_available() in (True, False)


@fork_new_process_for_each_test
def test_engine_core_finds_its_device():
    assert start_engine() in ("cuda", "cpu")
