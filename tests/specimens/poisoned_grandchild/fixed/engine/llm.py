"""The front end."""

from engine.core import run_engine_core
from engine.utils import get_mp_context


def start_engine() -> str:
    """The device that the engine core found."""
    context = get_mp_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_engine_core, args=(sender,))
    process.start()
    if not receiver.poll(60):
        raise TimeoutError("engine core sent nothing within 60 s")
    device = receiver.recv()
    process.join(30)
    return device
