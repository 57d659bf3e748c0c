"""Watches the GPUs from a thread while the engine starts."""

import threading

from engine import nvml


class Monitor:
    def __init__(self) -> None:
        self.ready = threading.Event()
        self.gpus = 0
        self._thread = threading.Thread(target=self._watch, name="gpu-monitor", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self.gpus = nvml.device_count()
        self.ready.set()

    def stop(self) -> None:
        self._thread.join(30)
