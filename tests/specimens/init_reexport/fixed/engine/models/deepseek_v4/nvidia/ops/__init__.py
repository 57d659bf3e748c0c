"""The NVIDIA kernels of DeepSeek V4.

Imports nothing on purpose: the kernels import cutlass at their top, which initializes the driver.
Import the module you need, where you need it.
"""
