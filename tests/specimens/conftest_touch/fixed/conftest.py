"""Shared by all tests: how many GPUs they may use."""

from engine import nvml

NUM_GPUS = nvml.device_count()


def pytest_report_header():
    return f"GPUs: {NUM_GPUS}"
