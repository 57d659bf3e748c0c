"""Scripts around the project: training of the tiny model, builds, checks."""
