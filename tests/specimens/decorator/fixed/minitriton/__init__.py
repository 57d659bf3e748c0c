"""Stands for triton-lang/triton#6150 (met as deepspeedai/DeepSpeed#7028): the autotune decorator asks for
the active driver when a kernel is defined, which is when its module is imported."""
