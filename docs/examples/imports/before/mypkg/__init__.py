"""A library with the three mistakes that most early initializations of CUDA come from."""
