"""The front end."""

from engine.monitor import Monitor
from engine.worker import run_in_worker


def start_engine() -> str:
    monitor = Monitor()
    monitor.ready.wait(30)
    try:
        return run_in_worker("engine {} of {}".format, 1, 1)
    finally:
        monitor.stop()
