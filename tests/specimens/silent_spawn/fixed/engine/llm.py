"""The front end."""

from engine.core import run_engine_core
from engine.kernel_warmup import kernels_to_warm_up
from engine.utils import get_mp_context


def start_engine(connector: str) -> str:
    assert kernels_to_warm_up()
    context = get_mp_context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_engine_core, args=(sender, connector))
    process.start()
    if not receiver.poll(60):
        raise TimeoutError("engine core sent nothing within 60 s")
    answer = receiver.recv()
    process.join(30)
    if isinstance(answer, Exception):
        raise answer
    return answer
