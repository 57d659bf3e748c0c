/* What the phantom pretends to be: a face such as "absent", "sm_90" or "sm_90x2", and the figures
 * of the GPU behind it. Shared by the driver and NVML.
 */
#ifndef CUDAFORK_PHANTOM_FACE_H
#define CUDAFORK_PHANTOM_FACE_H

#include <stddef.h>

enum {
    FACE_BYTES = 32,          /* longest spelling of a face, with its end */
    DEVICES_MOST = 16,
    DRIVER_VERSION = 13000    /* what cuDriverGetVersion says: CUDA 13.0 */
};
#define DRIVER_RELEASE "580.65.06"

struct model {
    int capability; /* 90 for sm_90 */
    const char *name;
    int multiprocessors, shared_per_sm, shared_per_block, threads_per_sm, blocks_per_sm;
    int cache_bytes, clock_khz, memory_khz, bus_bits;
    size_t memory_bytes;
};

struct face {
    int capability; /* 0: no device */
    int devices;
    int number[DEVICES_MOST]; /* of each device, the one that NVML and CUDA_VISIBLE_DEVICES know */
    struct model model;
};

/* Reads "absent", "sm_90", "sm_90x2"; anything else is -1 and leaves an absent face. */
int face_parse(const char *text, struct face *face);

/* Leaves the devices that a value of CUDA_VISIBLE_DEVICES names, in its order, up to the first name
 * of none; none at all if one is named twice.
 */
void face_show(struct face *face, const char *visible);

/* CU_DEVICE_ATTRIBUTE_*; 0 for those that are not known or not there. */
int face_attribute(const struct face *face, int attribute, int device);

/* What follows is about a device by its number. */
void face_uuid(int device, unsigned char uuid[16]);
void face_uuid_text(int device, char *text, size_t size);
void face_pci_id(int device, char *text, size_t size);

#endif
