"""DeepSeek V4: its quantization config is read for every model, its kernels are not."""
