"""Stands for vllm-project/vllm#43791: an ops package that re-exports its kernels made every importer
of the package initialize the driver through cutlass."""
