"""The compiled part."""

from bitsandbytes.cuda_setup import evaluate_cuda_setup

COMPILED_WITH_CUDA = evaluate_cuda_setup()  # touch: culprit
