"""The worker of an engine process."""

from engine.attention.flash import FlashAttention


class Worker:
    def __init__(self) -> None:
        self.attention = FlashAttention()

    def prefill(self, prompt: str) -> bytes:
        return self.attention.keys(prompt)
