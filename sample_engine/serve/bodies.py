"""How large the body of a request may be.

It is read as JSON in the event loop, where nobody else is answered meanwhile.
"""

from __future__ import annotations

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["MOST_BYTES", "LimitedBodies"]

MOST_BYTES = 1 << 24
"""Of a body: a text of a million tokens has about four million."""


class LimitedBodies:
    """Refuses requests with larger bodies, with status 413; nothing of them is kept."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        """Stand before an application."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        count = 0

        async def counted() -> Message:
            nonlocal count
            message = await receive()
            count += len(message.get("body", b""))
            if count <= self._most:
                return message
            while message.get("more_body"):  # a client that still sends reads no answer
                message = await receive()
            raise HTTPException(413, f"the body has more than {self._most} bytes")

        await self._app(scope, counted, send)
