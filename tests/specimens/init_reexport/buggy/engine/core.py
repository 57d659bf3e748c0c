"""The engine core process."""

import multiprocessing

from engine.quantization import resolve_quant_method


def _run(connection, quantization: str) -> None:
    from engine.models.deepseek_v4.compressor import Compressor

    connection.send(Compressor(ratio=2)([1.0, 3.0, 5.0, 7.0]))


def run_full_graph(quantization: str) -> list[float]:
    resolve_quant_method(quantization)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, quantization))
    process.start()
    assert receiver.poll(30), "engine core sent nothing within 30 s"
    answer = receiver.recv()
    process.join(30)
    return answer
