/* Between the two halves of the phantom driver: what may be answered now. */
#ifndef CUDAFORK_PHANTOM_DRIVER_H
#define CUDAFORK_PHANTOM_DRIVER_H

#include "phantom_face.h"

enum { /* CUresult */
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    NOT_FOUND = 500,
    NOT_SUPPORTED = 801
};

/* Fills `face`; returns SUCCESS if there is something to ask about. */
int ready(struct face *face);

/* Likewise, for one device. */
int device_ready(struct face *face, int device);

/* For a forked child, where nothing was retained by this process. */
void phantom_forget_contexts(void);

#endif
