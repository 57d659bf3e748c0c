/* The witness on a real driver: the library that CUDA_INJECTION64_PATH names. The driver loads it
 * inside the first cuInit of the process and calls InitializeInjection with its lock held, so
 * nothing here may wait for the GIL. What cuInit will answer is not decided yet at that time.
 */
#define _GNU_SOURCE
#include "child_patch.h"
#include "witness.h"

#include <stdlib.h>

enum { NOT_INITIALIZED = 3 };

/* In a child forked from an initialized process the driver does not call the injection again:
 * this stands in the place of cuInit there and answers what the driver answers. */
static int poisoned_cuInit(unsigned flags)
{
    struct touch touch = {"injection", "cuInit", __builtin_return_address(0), 0, 0,
                          NOT_INITIALIZED};

    (void)flags;
    witness_count(&touch);
    witness_record(&touch);
    return NOT_INITIALIZED;
}

static void forked(void)
{
    const char *wanted = secure_getenv("_CUDAFORK_PATCH_CHILD");

    if (witness_state() == POISONED && !(wanted && wanted[0] == '0' && wanted[1] == '\0'))
        child_patch_apply();
}

__attribute__((constructor)) static void injection_load(void) { witness_at_fork_child(forked); }

EXPORT int InitializeInjection(void)
{
    struct touch touch = {"injection", "cuInit", NULL, 0, 0, NO_RESULT};

    witness_count(&touch);
    witness_record(&touch);
    child_patch_prepare((void (*)(void))poisoned_cuInit);
    return 1; /* the driver reads it as success */
}
