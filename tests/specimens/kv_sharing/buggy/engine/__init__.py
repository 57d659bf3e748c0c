"""Stands for LMCache/LMCache#1710: two engine processes share a KV cache, and each dies when its GPU
worker imports an attention class whose body asks for the device capability."""
