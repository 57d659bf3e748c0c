"""The engine core's process: how it starts, what is said to it, how it ends."""
