"""Chooses the fastest of several configurations of a kernel."""

from minitriton.runtime.driver import driver


class Autotuner:
    def __init__(self, function, configs: list[dict]) -> None:
        self.function, self.configs = function, configs
        self.do_bench = driver.active.get_benchmarker()

    def __call__(self, *arguments):
        best = min(self.configs, key=self.do_bench)
        return self.function(*arguments, **best)


def autotune(configs: list[dict]):
    return lambda function: Autotuner(function, configs)
