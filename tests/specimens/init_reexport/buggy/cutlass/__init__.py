"""The part of the CuTe DSL package that the kernels use."""


def mean(values):
    return sum(values) / len(values)
