"""Tensor parallelism: rank 0 runs here, the others in processes."""

import multiprocessing

from nanovllm.model_runner import ModelRunner, work


class LLMEngine:
    def __init__(self, tensor_parallel_size: int) -> None:
        self.model_runner = ModelRunner(0)
        context = multiprocessing.get_context("fork")
        self.connections = []
        self.processes = []
        for rank in range(1, tensor_parallel_size):
            connection, remote = context.Pipe()
            process = context.Process(target=work, args=(rank, remote))
            process.start()
            self.connections.append(connection)
            self.processes.append(process)

    def step(self, tokens: list[int]) -> list[int]:
        for connection in self.connections:
            connection.send(tokens)
        partial = [self.model_runner.run(tokens)]
        for connection in self.connections:
            if not connection.poll(60):
                raise TimeoutError("a rank sent nothing within 60 s")
            partial.append(connection.recv())
        for process in self.processes:
            process.join(30)
        return partial
