"""Stands for sgl-project/sglang#34709: the server's arguments probe the device when they are made, the
benchmark forks the server, and the server forces spawn when it is too late."""
