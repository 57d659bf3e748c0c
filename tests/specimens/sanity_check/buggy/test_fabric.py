"""Listing providers, then forking ranks."""

from fabric.info import getinfo
from fabric.worker import run_in_worker


def test_ranks_see_the_same_providers():
    assert run_in_worker(getinfo) == getinfo()


def test_host_memory_needs_no_device():
    assert "tcp" in getinfo()
    assert run_in_worker(len, getinfo()) == len(getinfo())
