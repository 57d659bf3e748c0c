"""Stands for pytorch/pytorch#190708: torch.get_device_module() makes the process one that must not fork,
where torch.cuda.device_count() would have answered without harm."""
