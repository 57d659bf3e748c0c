"""Stands for mars-project/mars#479: an array library is imported in the parent of a pool of workers, which
starts them with a fork that it bound to a name of its own."""
