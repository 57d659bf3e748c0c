"""Whether kernels can be compiled here."""

from minitriton.backends import active_backends

HAS_TRITON = len(active_backends()) == 1
