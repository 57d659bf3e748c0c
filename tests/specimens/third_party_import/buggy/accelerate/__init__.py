"""Stands for huggingface/accelerate#1807: a quantization library initializes CUDA when imported, and the
notebook launcher imports it long before anybody quantizes."""
