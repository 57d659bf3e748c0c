/* Which shared objects are on the C stack. */
#define _GNU_SOURCE
#include "witness.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { DEPTH = 128, OBJECTS = 32 };

/* The first call of backtrace() loads libgcc_s: better now than inside the driver's lock. */
__attribute__((constructor)) static void native_stack_load(void)
{
    void *one;

    backtrace(&one, 1);
}

/* The loader knows the program itself by argv[0], which need not be a path. */
static void object_name(const Dl_info *object, char *name, size_t size)
{
    ssize_t length;

    snprintf(name, size, "%s", object->dli_fname);
    if (object->dli_fname[0] != '/') {
        length = readlink("/proc/self/exe", name, size - 1);
        if (length > 0)
            name[length] = '\0';
    }
}

static int is_driver(const char *name)
{
    const char *base = strrchr(name, '/');

    return strncmp(base ? base + 1 : name, "libcuda.so", 10) == 0;
}

void native_stack(struct text *out, void *at, char *caller, size_t size)
{
    void *addresses[DEPTH], *bases[OBJECTS];
    Dl_info own = {0}, object = {0};
    char name[4096];
    int count = 0, depth = backtrace(addresses, DEPTH);

    caller[0] = '\0';
    dladdr((void *)native_stack_load, &own);
    if (at && dladdr(at, &object) && object.dli_fname)
        object_name(&object, caller, size);
    text_word(out, "[");
    for (int i = 0; i < depth && count < OBJECTS; i++) {
        int known = 0;
        if (!dladdr(addresses[i], &object) || !object.dli_fname ||
            object.dli_fbase == own.dli_fbase)
            continue;
        for (int j = 0; j < count; j++)
            known |= bases[j] == object.dli_fbase;
        if (known)
            continue;
        object_name(&object, name, sizeof name);
        if (count)
            text_word(out, ",");
        text_json(out, name, strlen(name));
        bases[count++] = object.dli_fbase;
        if (!at && !caller[0] && !is_driver(name))
            snprintf(caller, size, "%s", name);
    }
    text_word(out, "]");
}
