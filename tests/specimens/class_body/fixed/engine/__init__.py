"""Stands for vLLM v0.7 to v0.11 (the spec decode fork deadlock): a class body asks for the device
capability when the forked engine core imports the attention backend."""
