"""The front end: starts the engine core and talks to it."""

from engine.structured_output import mask_device
from engine.utils import get_mp_context
from engine.v1.core import run_engine_core


class LLM:
    def __init__(self, speculative_config: dict) -> None:
        self.mask_device = mask_device()
        context = get_mp_context()
        self._connection, remote = context.Pipe()
        self._process = context.Process(
            target=run_engine_core,
            args=(remote, speculative_config["num_speculative_tokens"]),
        )
        self._process.start()
        self._expect("ready")

    def _expect(self, kind: str):
        if not self._connection.poll(30):
            raise TimeoutError(f"engine core sent no {kind!r} within 30 s")
        got, value = self._connection.recv()
        if got != kind:
            self._process.join()
            raise RuntimeError(f"Engine core initialization failed: {value}")
        return value

    def draft(self, token_ids: list[int]) -> list[int]:
        self._connection.send(token_ids)
        draft = self._expect("draft")
        self._process.join(30)
        return draft
