"""Stands for pytorch/pytorch#184643: the manager of a pool of compile workers reads the device properties,
forks the workers, and each of them asks the driver again."""
