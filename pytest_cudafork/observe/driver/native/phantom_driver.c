/* The phantom driver: a libcuda.so.1 that records who calls cuInit and answers as a machine without
 * a GPU would (the face "absent") or with some ("sm_90x2"). It answers questions and does not
 * compute: what needs a GPU is refused. Touches are recorded by witness.c and record.c.
 */
#define _GNU_SOURCE
#include "entry_points.h"
#include "phantom_driver.h"
#include "witness.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic(char *) chosen_face; /* overrides the environment; old ones are never freed */
static _Atomic(char *) visible;     /* CUDA_VISIBLE_DEVICES at the first cuInit; old ones likewise */
static atomic_int initialized;      /* cuInit answered 0 in this process */
static atomic_int refused_once;

static const char *face_text(void)
{
    const char *text = atomic_load(&chosen_face);

    if (!text)
        text = secure_getenv("_CUDAFORK_FACE");
    return text && *text ? text : "absent";
}

static struct face current_face(void)
{
    struct face face;

    const char *mask = atomic_load(&visible);

    face_parse(face_text(), &face); /* a spelling that is no face reads as absent */
    if (mask)
        face_show(&face, mask);
    return face;
}

/* As the real driver, which reads the variable once. */
static void read_visible(void)
{
    const char *text = secure_getenv("CUDA_VISIBLE_DEVICES"), *old = atomic_load(&visible);

    if (atomic_load(&initialized) || (text && old && strcmp(text, old) == 0))
        return;
    atomic_store(&visible, text ? strdup(text) : NULL);
}

static void forked(void)
{
    atomic_store(&initialized, 0);
    atomic_store(&refused_once, 0);
    phantom_forget_contexts();
}

__attribute__((constructor)) static void phantom_load(void) { witness_at_fork_child(forked); }

EXPORT const char *cudafork_get_face(void) { return face_text(); }

/* NULL or "" goes back to the environment. Returns -1, and changes nothing, if it is no face. */
EXPORT int cudafork_set_face(const char *text)
{
    struct face face;
    char *copy = NULL;

    if (text && *text) {
        if (strlen(text) >= FACE_BYTES || face_parse(text, &face) < 0 || !(copy = strdup(text)))
            return -1;
    }
    atomic_store(&chosen_face, copy);
    return 0;
}

EXPORT void cudafork_reset(int state)
{
    witness_reset(state);
    forked();
    read_visible();
    atomic_store(&initialized, state == INITIALIZED);
}

EXPORT int cuInit(unsigned flags)
{
    struct touch touch = {"phantom", "cuInit", __builtin_return_address(0), 0, 0, NO_RESULT};
    struct face face;

    (void)flags;
    read_visible();
    face = current_face();
    witness_count(&touch);
    touch.result = !face.devices ? NO_DEVICE : touch.poisoned ? NOT_INITIALIZED : SUCCESS;
    if (touch.result == SUCCESS)
        atomic_store(&initialized, 1);
    witness_record(&touch);
    return touch.result;
}

int ready(struct face *face)
{
    *face = current_face();
    return witness_state() != POISONED && atomic_load(&initialized) && face->devices
               ? SUCCESS : NOT_INITIALIZED;
}

int device_ready(struct face *face, int device)
{
    int answer = ready(face);

    return answer ? answer : device >= 0 && device < face->devices ? SUCCESS : INVALID_DEVICE;
}

int phantom_refuse(const char *entry)
{
    struct face face;
    int answer = ready(&face);
    char words[512];
    int length;

    if (answer)
        return answer;
    if (!atomic_exchange(&refused_once, 1)) {
        length = snprintf(words, sizeof words,
                          "pytest-cudafork: %s was refused with CUDA_ERROR_NOT_SUPPORTED (801): the "
                          "phantom driver (face '%s') answers questions, it does not compute. Run "
                          "this on a machine with a GPU, or keep it out of code that only asks. "
                          "(Said once per process.)\n", entry, face_text());
        if (write(STDERR_FILENO, words, (size_t)length) < 0)
            return NOT_SUPPORTED; /* nobody listens */
    }
    return NOT_SUPPORTED;
}

/* ---- what needs no cuInit ---- */

EXPORT int cuDriverGetVersion(int *version)
{
    if (!version)
        return INVALID_VALUE;
    *version = DRIVER_VERSION;
    return SUCCESS;
}

EXPORT int cuGetErrorName(int code, const char **text)
{
    const char *words;

    if (!text)
        return INVALID_VALUE;
    *text = NULL;
    return find_error(code, text, &words) ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuGetErrorString(int code, const char **text)
{
    const char *name;

    if (!text)
        return INVALID_VALUE;
    *text = NULL;
    return find_error(code, &name, text) ? SUCCESS : INVALID_VALUE;
}

/* Private tables of the runtime and of profilers: the phantom has none. */
EXPORT int cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    if (!table)
        return INVALID_VALUE;
    *table = NULL;
    return NOT_FOUND;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags,
                               int *status)
{
    enum proc_status answer;

    if (!name || !found || version > DRIVER_VERSION)
        return INVALID_VALUE;
    answer = find_entry_point(name, version, (flags & 2) != 0, found); /* 2: per-thread streams */
    if (status)
        *status = (int)answer;
    return answer == PROC_FOUND || status ? SUCCESS : NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, NULL);
}
