"""The end of the server: requests go on for a moment, and what is left then is told why it ends.

uvicorn by itself cancels what is left: a stream then stops without a word, and a traceback is
logged for each.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from sample_engine.serve.streams import Streams

__all__ = ["EndingServer"]

_TO_TELL_SECONDS = 2
"""How long clients may take to read why, before they are cut off."""


class EndingServer(uvicorn.Server):
    """A server that ends its streams itself when it is told to stop."""

    def __init__(self, config: uvicorn.Config, streams: Streams, seconds: float) -> None:
        """Let what is under way go on for some seconds after that."""
        config.timeout_graceful_shutdown = int(seconds) + _TO_TELL_SECONDS
        super().__init__(config)
        self._streams = streams
        self._seconds = seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more requests, and end those that there are."""
        timer = asyncio.get_running_loop().call_later(self._seconds, self._streams.stop)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()
        if self.force_exit:  # Ctrl-C, twice: nobody has waited for anything
            self._streams.stop()
            if self.server_state.tasks:
                await asyncio.wait(self.server_state.tasks, timeout=_TO_TELL_SECONDS)
            # uvicorn leaves it waiting: it is cancelled at the end, and a traceback tells of that.
            await self.lifespan.shutdown()
