"""Stands for pytorch/pytorch#13883 and mars-project/mars#479: something that is not torch initializes the
driver in the parent, and the forked worker finds a driver it cannot use."""
