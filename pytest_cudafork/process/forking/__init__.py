"""How this process forks, and where in its stack the child begins."""
