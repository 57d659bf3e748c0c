"""Stands for numba/numba#6149 (and glotzerlab/signac-flow#115): importing the package compares the versions
of runtime and driver, for which it initializes the driver."""

from nbcuda.api import jit

__all__ = ["jit"]
