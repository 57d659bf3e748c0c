import contextlib

from pytest_cudafork.capture.software.backend import SoftwareBackend
from sample_engine import LLM, SamplingParams


class SoftwareGraphs:
    def __init__(self):
        self.backend = SoftwareBackend()
        self.captures = []

    def new_pool(self):
        return self.backend.new_pool()

    def session(self):
        return contextlib.nullcontext()

    def capture(self, fn, pool):
        self.captures.append(self.backend.capture(fn, pool=pool))
        return self.captures[-1]

    def synchronize(self):
        pass


def complete(prompts, **settings):
    graphs = SoftwareGraphs()
    with LLM(
        device="cpu", cudagraph_mode="FULL_AND_PIECEWISE", graph_execution=graphs, **settings
    ) as llm:
        return graphs, llm.generate(prompts, SamplingParams(max_tokens=8))


if __name__ == "__main__":
    graphs, outputs = complete(["def quick_sort("], max_model_len=64, worker_method="inproc")
    print(outputs[0].prompt + outputs[0].text)
    print(len(graphs.captures), "graphs were captured in this process")
