"""How the engine starts its processes."""

import logging
import multiprocessing
import os
import sys

logger = logging.getLogger(__name__)


def cuda_is_initialized() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _maybe_force_spawn() -> str:
    method = os.environ.get("ENGINE_WORKER_MULTIPROC_METHOD", "fork")
    if method == "fork" and cuda_is_initialized():
        logger.warning("We must use the spawn start method. Reasons: CUDA is initialized")
        return "spawn"
    return method


def get_mp_context():
    return multiprocessing.get_context(_maybe_force_spawn())
