"""Simulates in a pool of processes, one device each."""

import multiprocessing

from simulation.device import Context, count_devices

_context = None


def _init_worker(devices: int) -> None:
    # An initializer that raises makes the pool start workers for ever: keep what went wrong.
    global _context
    try:
        _context = Context.create(devices)
    except RuntimeError as error:
        _context = error


def _simulate(step: int) -> int:
    if isinstance(_context, Exception):
        raise _context
    return step * step


def simulate(steps: int) -> list[int]:
    devices = count_devices()
    with multiprocessing.get_context("fork").Pool(1, _init_worker, (devices,)) as pool:
        return pool.map_async(_simulate, range(steps)).get(timeout=30)
