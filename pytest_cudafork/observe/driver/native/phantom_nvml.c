/* The phantom NVML: a libnvidia-ml.so.1 that answers what torch, vLLM and pynvml ask for about the
 * devices of the phantom's face. NVML never initializes CUDA, so nothing is recorded here.
 *
 * No memory is in use on a phantom. So that waiting for memory can be tried without a GPU, the
 * variable _CUDAFORK_PHANTOM_MEMORY may name a file that says otherwise, in lines of three numbers:
 * the device, a process (0: one that the driver hides), and the bytes that it holds.
 */
#define _GNU_SOURCE
#include "phantom_face.h"
#include "witness.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { /* nvmlReturn_t */
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9
};

static const char *const words[] = {
    "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
    "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
    "Driver Not Loaded",
};

static atomic_int users;         /* nvmlInit without nvmlShutdown */
static char handles[DEVICES_MOST]; /* a handle is the address of its device's element */

/* The face is chosen in the phantom driver, if that is loaded, else in the environment. */
static struct face current_face(void)
{
    struct face face;
    const char *(*chosen)(void);
    const char *text = secure_getenv("_CUDAFORK_FACE");

    *(void **)&chosen = dlsym(RTLD_DEFAULT, "cudafork_get_face");
    face_parse(chosen ? chosen() : text && *text ? text : "absent", &face);
    return face;
}

static int ready(struct face *face)
{
    *face = current_face();
    return !face->devices ? DRIVER_NOT_LOADED : atomic_load(&users) > 0 ? SUCCESS : UNINITIALIZED;
}

static ptrdiff_t index_of(const void *handle) { return (const char *)handle - handles; }

static int device_ready(struct face *face, const void *handle)
{
    ptrdiff_t index = index_of(handle);
    int answer = ready(face);

    return answer ? answer : index >= 0 && index < face->devices ? SUCCESS : INVALID_ARGUMENT;
}

static int give(char *out, unsigned size, const char *text)
{
    if (!out)
        return INVALID_ARGUMENT;
    return snprintf(out, size, "%s", text) < (int)size ? SUCCESS : INSUFFICIENT_SIZE;
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!current_face().devices)
        return DRIVER_NOT_LOADED;
    atomic_fetch_add(&users, 1);
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void)
{
    struct face face;
    int answer = ready(&face);

    if (!answer)
        atomic_fetch_sub(&users, 1);
    return answer;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code >= 0 && code < (int)(sizeof words / sizeof *words) ? words[code] : "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    struct face face;
    int answer = ready(&face);

    return answer ? answer : give(out, size, DRIVER_RELEASE);
}

EXPORT int nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    struct face face;
    int answer = ready(&face);

    return answer ? answer : give(out, size, "13." DRIVER_RELEASE);
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!version)
        return INVALID_ARGUMENT;
    *version = DRIVER_VERSION; /* answered before nvmlInit too */
    return current_face().devices ? SUCCESS : DRIVER_NOT_LOADED;
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !count)
        return INVALID_ARGUMENT;
    if (!answer)
        *count = (unsigned)face.devices;
    return answer;
}

EXPORT int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    struct face face;
    int answer = ready(&face);

    if (!answer && !handle)
        return INVALID_ARGUMENT;
    if (!answer && index >= (unsigned)face.devices)
        return INVALID_ARGUMENT;
    if (!answer)
        *handle = &handles[index];
    return answer;
}

EXPORT int nvmlDeviceGetHandleByIndex(unsigned index, void **handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

EXPORT int nvmlDeviceGetIndex(void *handle, unsigned *index)
{
    struct face face;
    int answer = device_ready(&face, handle);

    if (!answer && !index)
        return INVALID_ARGUMENT;
    if (!answer)
        *index = (unsigned)index_of(handle);
    return answer;
}

EXPORT int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor)
{
    return nvmlDeviceGetIndex(handle, minor);
}

EXPORT int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    struct face face;
    int answer = device_ready(&face, handle);

    if (!answer && (!major || !minor))
        return INVALID_ARGUMENT;
    if (!answer) {
        *major = face.capability / 10;
        *minor = face.capability % 10;
    }
    return answer;
}

EXPORT int nvmlDeviceGetName(void *handle, char *out, unsigned size)
{
    struct face face;
    char name[96];
    int answer = device_ready(&face, handle);

    snprintf(name, sizeof name, "NVIDIA %s (phantom)", answer ? "" : face.model.name);
    return answer ? answer : give(out, size, name);
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *out, unsigned size)
{
    struct face face;
    char text[48];
    int answer = device_ready(&face, handle);

    if (answer)
        return answer;
    face_uuid_text((int)index_of(handle), text, sizeof text);
    return give(out, size, text);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    struct face face;
    char text[48];
    int answer = ready(&face);

    if (!answer && (!uuid || !handle))
        return INVALID_ARGUMENT;
    for (int device = 0; !answer && device < face.devices; device++) {
        face_uuid_text(device, text, sizeof text);
        if (strcmp(text, uuid) == 0) {
            *handle = &handles[device];
            return SUCCESS;
        }
    }
    return answer ? answer : NOT_FOUND;
}

struct memory { unsigned long long total, available, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, available, used; };
struct process { /* nvmlProcessInfo_t */
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

static const unsigned long long reserved = 512ULL << 20; /* what a driver keeps for itself */

/* A process that has ended holds nothing, though nobody may have reaped it yet. */
static int has_ended(unsigned pid)
{
    char path[32], program[2];

    snprintf(path, sizeof path, "/proc/%u/exe", pid);
    return readlink(path, program, sizeof program) < 0 && errno == ENOENT;
}

/* Reads who holds memory on a device. Returns how many processes there are that the driver shows, of
 * which the first *room* are written, or -1 where nobody tells; *used* is what all hold. */
static long read_holders(ptrdiff_t device, struct process *out, unsigned room,
                         unsigned long long *used)
{
    const char *path = secure_getenv("_CUDAFORK_PHANTOM_MEMORY");
    FILE *file = path && *path ? fopen(path, "re") : NULL;
    long count = 0, where;
    unsigned pid;
    unsigned long long bytes;

    *used = 0;
    if (!file)
        return path && *path ? 0 : -1;
    while (fscanf(file, "%ld %u %llu", &where, &pid, &bytes) == 3) {
        if (where != device || (pid && has_ended(pid)))
            continue;
        *used += bytes;
        if (!pid)
            continue;
        if (count < (long)room)
            out[count] = (struct process){pid, bytes, ~0u, ~0u};
        count++;
    }
    fclose(file);
    return count;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
    struct face face;
    unsigned long long used;
    int answer = device_ready(&face, handle);

    if (!answer && !memory)
        return INVALID_ARGUMENT;
    if (!answer) {
        read_holders(index_of(handle), NULL, 0, &used);
        memory->total = face.model.memory_bytes;
        memory->used = reserved + used;
        memory->available = memory->total - memory->used;
    }
    return answer;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory)
{
    struct face face;
    unsigned long long used;
    int answer = device_ready(&face, handle);

    if (!answer && !memory)
        return INVALID_ARGUMENT;
    if (!answer) {
        read_holders(index_of(handle), NULL, 0, &used);
        memory->total = face.model.memory_bytes;
        memory->reserved = reserved;
        memory->used = used;
        memory->available = memory->total - reserved - used;
    }
    return answer;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                                   struct process *out)
{
    struct face face;
    unsigned long long used;
    long found;
    int answer = device_ready(&face, handle);

    if (answer)
        return answer;
    if (!count || (*count && !out))
        return INVALID_ARGUMENT;
    found = read_holders(index_of(handle), out, *count, &used);
    if (found < 0)
        return NOT_SUPPORTED;
    answer = found > (long)*count ? INSUFFICIENT_SIZE : SUCCESS;
    *count = (unsigned)found;
    return answer;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count,
                                                   struct process *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, out);
}

struct pci { /* nvmlPciInfo_t */
    char short_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

/* Callers of the older entry points have an older struct: the first fields, and nothing after. */
enum {
    PCI_BYTES_V1 = offsetof(struct pci, subsystem_id),
    PCI_BYTES_V2 = offsetof(struct pci, id),
    PCI_BYTES_V3 = sizeof(struct pci)
};

static int give_pci(void *handle, void *out, size_t size)
{
    struct face face;
    struct pci pci = {0};
    int answer = device_ready(&face, handle);

    if (!answer && !out)
        return INVALID_ARGUMENT;
    if (!answer) {
        pci.bus = (unsigned)index_of(handle) + 1;
        face_pci_id((int)index_of(handle), pci.id, sizeof pci.id);
        snprintf(pci.short_id, sizeof pci.short_id, "0000:%02X:00.0", pci.bus);
        memcpy(out, &pci, size);
    }
    return answer;
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, void *pci)
{
    return give_pci(handle, pci, PCI_BYTES_V3);
}

EXPORT int nvmlDeviceGetPciInfo_v2(void *handle, void *pci)
{
    return give_pci(handle, pci, PCI_BYTES_V2);
}

EXPORT int nvmlDeviceGetPciInfo(void *handle, void *pci)
{
    return give_pci(handle, pci, PCI_BYTES_V1);
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle)
{
    struct face face;
    unsigned domain, bus, slot;
    int answer = ready(&face);

    if (answer)
        return answer;
    if (!text || !handle || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return INVALID_ARGUMENT;
    return bus >= 1 && bus <= (unsigned)face.devices ? nvmlDeviceGetHandleByIndex_v2(bus - 1, handle)
                                                     : NOT_FOUND;
}

EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    struct face face;
    int answer = device_ready(&face, handle);

    (void)current;
    (void)pending;
    return answer ? answer : NOT_SUPPORTED;
}

/* Questions about load, power, links and processes: a device that is not there has none. */
#define NOT_HERE(name) \
    EXPORT int name(void *handle); \
    int name(void *handle) \
    { \
        struct face face; \
        int answer = device_ready(&face, handle); \
        return answer ? answer : NOT_SUPPORTED; \
    }
NOT_HERE(nvmlDeviceGetComputeRunningProcesses)
NOT_HERE(nvmlDeviceGetP2PStatus)
NOT_HERE(nvmlDeviceGetNvLinkState)
NOT_HERE(nvmlDeviceGetNvLinkRemotePciInfo)
NOT_HERE(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_HERE(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_HERE(nvmlDeviceGetUtilizationRates)
NOT_HERE(nvmlDeviceGetPowerUsage)
NOT_HERE(nvmlDeviceGetTemperature)
NOT_HERE(nvmlDeviceGetClockInfo)
NOT_HERE(nvmlDeviceGetMaxMigDeviceCount)
NOT_HERE(nvmlDeviceGetGpuFabricInfo)
NOT_HERE(nvmlDeviceGetGpuFabricInfoV)
