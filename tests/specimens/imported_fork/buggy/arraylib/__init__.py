"""Arrays on the GPU; finds its devices when imported."""

from arraylib._runtime import get_device_count

NUM_DEVICES = get_device_count()  # touch: culprit


def asnumpy(values):
    return list(values)
