"""A package of which a process that is forked afterwards may import most."""
