/* What the phantom driver answers about the devices of its face, and contexts that are handles with
 * nothing behind them. Whether cuInit was called is kept in phantom_driver.c (`ready`).
 */
#include "phantom_driver.h"
#include "witness.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXTS_DEEP = 16 };

static atomic_int retained[DEVICES_MOST];
static char contexts[DEVICES_MOST]; /* a context is the address of its device's element */
static __thread void *stack[CONTEXTS_DEEP];
static __thread int depth;
static atomic_int sick[DEVICES_MOST]; /* what a broken context answers to everything; 0: it is well */

void phantom_forget_contexts(void)
{
    for (int device = 0; device < DEVICES_MOST; device++)
        atomic_store(&retained[device], 0), atomic_store(&sick[device], 0);
    depth = 0;
}

/* For tests of what becomes of a session: from now on the context of the device answers `code`, as
 * a real one does after an error that stays. 0 makes it well. */
EXPORT int cudafork_make_sick(int device, int code)
{
    if (device < 0 || device >= DEVICES_MOST)
        return INVALID_DEVICE;
    atomic_store(&sick[device], code);
    return SUCCESS;
}

/* Whether this is a handle that cuDevicePrimaryCtxRetain gives, and not NULL or something else's. */
static int is_context(const void *context)
{
    return (uintptr_t)context - (uintptr_t)contexts < sizeof contexts;
}

/* What the current context answers to everything. */
static int current_sickness(void)
{
    return depth ? atomic_load(&sick[(char *)stack[depth - 1] - contexts]) : SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !count)
        return INVALID_VALUE;
    if (!answer)
        *count = face.devices;
    return answer;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
    struct face face;
    int answer = device_ready(&face, ordinal);

    if (!answer && !device)
        return INVALID_VALUE;
    if (!answer)
        *device = ordinal;
    return answer;
}

EXPORT int cuDeviceGetName(char *name, int size, int device)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !name)
        return INVALID_VALUE;
    if (!answer)
        snprintf(name, size > 0 ? (size_t)size : 0, "NVIDIA %s (phantom)", face.model.name);
    return answer;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !bytes)
        return INVALID_VALUE;
    if (!answer)
        *bytes = face.model.memory_bytes;
    return answer;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !uuid)
        return INVALID_VALUE;
    if (!answer)
        face_uuid(face.number[device], uuid);
    return answer;
}

EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

EXPORT int cuDeviceGetPCIBusId(char *text, int size, int device)
{
    struct face face;
    char id[32];
    int answer = device_ready(&face, device);

    if (!answer && !text)
        return INVALID_VALUE;
    if (!answer) {
        face_pci_id(face.number[device], id, sizeof id);
        snprintf(text, size > 0 ? (size_t)size : 0, "%s", id + 4); /* the driver's domain is short */
    }
    return answer;
}

EXPORT int cuDeviceGetByPCIBusId(int *device, const char *text)
{
    struct face face;
    unsigned domain, bus, slot;
    int answer = ready(&face);

    if (answer)
        return answer;
    if (!text || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 || bus < 1)
        return INVALID_VALUE;
    for (int ordinal = 0; ordinal < face.devices; ordinal++)
        if (face.number[ordinal] == (int)bus - 1)
            return cuDeviceGet(device, ordinal);
    return INVALID_DEVICE;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !value)
        return INVALID_VALUE;
    if (!answer && attribute < 1)
        return INVALID_VALUE;
    if (!answer)
        *value = face_attribute(&face, attribute, face.number[device]);
    return answer;
}

EXPORT int cuDeviceComputeCapability(int *major, int *minor, int device)
{
    int answer = cuDeviceGetAttribute(major, 75, device);

    return answer ? answer : cuDeviceGetAttribute(minor, 76, device);
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !can)
        return INVALID_VALUE;
    if (!answer && !(answer = device_ready(&face, peer)))
        *can = device != peer;
    return answer;
}

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && (!available || !total))
        return INVALID_VALUE;
    if (!answer) {
        *total = face.model.memory_bytes;
        *available = face.model.memory_bytes - ((size_t)512 << 20); /* a context takes its share */
    }
    return answer;
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && (!flags || !active))
        return INVALID_VALUE;
    if (!answer) {
        *flags = 0;
        *active = atomic_load(&retained[device]) > 0;
    }
    return answer;
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
    struct face face;
    int answer = device_ready(&face, device);

    if (!answer && !context)
        return INVALID_VALUE;
    if (!answer) {
        atomic_fetch_add(&retained[device], 1);
        *context = &contexts[device];
    }
    return answer;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
    struct face face;
    int answer = device_ready(&face, device), count;

    if (answer)
        return answer;
    count = atomic_load(&retained[device]); /* never below 0, whoever else releases it now */
    while (count && !atomic_compare_exchange_weak(&retained[device], &count, count - 1))
        ;
    return count ? SUCCESS : INVALID_CONTEXT;
}

EXPORT int cuCtxGetCurrent(void **context)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !context)
        return INVALID_VALUE;
    if (!answer)
        *context = depth ? stack[depth - 1] : NULL;
    return answer;
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && (!is_context(context) || depth == CONTEXTS_DEEP))
        return INVALID_CONTEXT;
    if (!answer)
        stack[depth++] = context;
    return answer;
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !depth)
        return INVALID_CONTEXT;
    if (!answer) {
        depth--;
        if (context)
            *context = stack[depth];
    }
    return answer;
}

EXPORT int cuCtxSetCurrent(void *context)
{
    struct face face;
    int answer = ready(&face);

    if (answer)
        return answer;
    if (context && !is_context(context))
        return INVALID_CONTEXT;
    if (depth)
        depth--;
    return context ? cuCtxPushCurrent_v2(context) : SUCCESS;
}

EXPORT int cuCtxGetDevice(int *device)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !device)
        return INVALID_VALUE;
    if (!answer && !depth)
        return INVALID_CONTEXT;
    if (!answer)
        *device = (int)((char *)stack[depth - 1] - contexts);
    return answer;
}

EXPORT int cuCtxGetApiVersion(void *context, unsigned *version)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !version)
        return INVALID_VALUE;
    (void)context;
    if (!answer)
        *version = 3020;
    return answer;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && least) /* who does not want one of them passes NULL */
        *least = 0;
    if (!answer && greatest)
        *greatest = -5;
    return answer;
}

/* Nothing was ever started, so all of it has ended. */
EXPORT int cuCtxSynchronize(void)
{
    struct face face;
    int answer = ready(&face);

    return answer ? answer : current_sickness();
}

/* Nothing is ever captured. */
EXPORT int cuStreamIsCapturing(void *stream, int *status)
{
    struct face face;
    int answer = ready(&face);

    (void)stream;
    if (!answer && !status)
        return INVALID_VALUE;
    if (!answer && !(answer = current_sickness()))
        *status = 0;
    return answer;
}

EXPORT int cuLogsCurrent(unsigned *place, unsigned flags)
{
    if (!place || flags)
        return INVALID_VALUE;
    *place = 0;
    return SUCCESS;
}

/* The log has a line for each context that is broken. */
EXPORT int cuLogsDumpToMemory(unsigned *place, char *text, size_t *size, unsigned flags)
{
    size_t used = 0;

    (void)place;
    if (!text || !size || !*size || flags)
        return INVALID_VALUE;
    *text = 0;
    for (int device = 0; device < DEVICES_MOST && used < *size; device++)
        if (atomic_load(&sick[device]))
            used += (size_t)snprintf(text + used, *size - used,
                                     "[phantom][E] the context of device %d was made sick\n", device);
    *size = strlen(text);
    return SUCCESS;
}
