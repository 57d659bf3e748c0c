"""Stands for pytorch/pytorch#171804: the same import is clean or not by an environment variable that asks
for a profiling daemon."""
