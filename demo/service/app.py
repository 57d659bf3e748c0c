"""The service: it has used CUDA, and has a script punctuate and summarize the text of a request."""

from __future__ import annotations

import contextlib
import ctypes
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from demo.service.script_runs import (
    ScriptFailedError,
    ScriptRuns,
    ScriptSettings,
    ScriptTooSlowError,
)
from sample_engine.serve.disconnects import unless_gone

CLIENT_WENT_AWAY = 499
"""What nobody reads: the status that nginx gives such a request in its log."""


class Text(BaseModel):
    """What is to be worked on."""

    text: str = Field(min_length=1, max_length=20_000)


def transcriber_status() -> int:
    """Stand for the speech model that the service holds: ask the driver for a GPU, which it uses.

    Returns what the driver answers; 100 where there is none.
    """
    try:
        return int(ctypes.CDLL("libcuda.so.1").cuInit(0))
    except OSError:
        return 100


def create_app(settings: ScriptSettings) -> FastAPI:
    """Return the service; it uses CUDA at once."""
    runs = ScriptRuns(settings)
    cuda = transcriber_status()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        runs.close()  # uvicorn does not wait until requests that it cancels have tidied up

    app = FastAPI(title="Post-processing of transcripts", lifespan=lifespan)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say what runs."""
        return {
            "cuda": cuda,
            "start_method": settings.start_method,
            "running": sorted(runs.running),
        }

    @app.post("/postprocess")
    async def postprocess(text: Text, request: Request) -> Response:
        """Punctuate, then summarize."""
        try:
            answer = await unless_gone(request, runs.answer(text.text))
        except ScriptTooSlowError as error:
            return JSONResponse({"error": str(error)}, status_code=504)
        except ScriptFailedError as error:
            return JSONResponse({"error": str(error), "stderr": error.stderr}, status_code=502)
        if answer is None:
            return Response(status_code=CLIENT_WENT_AWAY)
        try:
            return JSONResponse(json.loads(answer))
        except ValueError:
            wrong = {"error": f"the script's answer is no JSON: {answer[:200]!r}"}
            return JSONResponse(wrong, status_code=502)

    return app
