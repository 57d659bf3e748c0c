"""Stands for pytorch/pytorch#17359: a collate function asks about the GPU in the DataLoader's worker; the
first epoch passes and the second dies, as the parent has used CUDA in between."""
