/* Which shared objects are on the C stack. */
#define _GNU_SOURCE
#include "witness.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(CUDAFORK_WITHOUT_EXECINFO)
#include <execinfo.h>
#else
#include <unwind.h>

/* musl has no backtrace(). It is what glibc's is: the unwinder of libgcc_s, if that is there, which it
   need not be; then the caller's return address is all that is known. */
typedef _Unwind_Reason_Code (*unwinder)(_Unwind_Trace_Fn, void *);

struct walk {
    void **addresses;
    int depth, size;
};

static _Unwind_Reason_Code one_frame(struct _Unwind_Context *frame, void *into)
{
    struct walk *walk = into;

    if (walk->depth == walk->size)
        return _URC_END_OF_STACK;
    walk->addresses[walk->depth++] = (void *)_Unwind_GetIP(frame);
    return _URC_NO_REASON;
}

static int backtrace(void **addresses, int size)
{
    static unwinder unwind;
    static int looked;
    struct walk walk = {addresses, 0, size};

    if (!looked) {
        void *library = dlopen("libgcc_s.so.1", RTLD_NOW);

        unwind = library ? (unwinder)dlsym(library, "_Unwind_Backtrace") : NULL;
        looked = 1;
    }
    if (unwind)
        unwind(one_frame, &walk);
    return walk.depth;
}
#endif

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
