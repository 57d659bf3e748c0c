"""Stands for vllm-project/vllm#14910: the config check in the parent wants one small helper, and gets it
from a backend module that imports the kernels with it."""
