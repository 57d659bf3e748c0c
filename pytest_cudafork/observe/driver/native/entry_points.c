/* Every entry point of the driver that the phantom does not answer itself, and the table behind
 * cuGetProcAddress. The stubs are weak: a definition in phantom_driver.c takes their place, so a
 * newly answered entry point needs no change here.
 */
#include "entry_points.h"
#include "witness.h"

#include <stddef.h>
#include <string.h>

#define ENTRY(name) \
    EXPORT __attribute__((weak)) int name(void); \
    int name(void) { return phantom_refuse(#name); }
#include "entry_points.inc"
#undef ENTRY

/* One form of a function: what it is asked for as, since which version of CUDA it is the answer. */
static const struct {
    const char *base;
    int since;
    int (*legacy)(void), (*per_thread)(void);
} forms[] = {
#define PROC(base, since, legacy, per_thread) {#base, since, legacy, per_thread},
#include "entry_points.inc"
#undef PROC
};

static const struct {
    int code;
    const char *name, *words;
} errors[] = {
#define ERROR(code, name, words) {code, #name, words},
#include "entry_points.inc"
#undef ERROR
};

enum proc_status find_entry_point(const char *name, int version, int per_thread, void **found)
{
    enum proc_status status = PROC_NOT_FOUND;

    *found = NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(forms[i].base, name) != 0)
            continue;
        if (forms[i].since <= version) { /* rows of one name stand in order, so the last one wins */
            *(int (**)(void))found = per_thread ? forms[i].per_thread : forms[i].legacy;
            status = PROC_FOUND;
        } else if (!*found)
            status = PROC_TOO_NEW;
    }
    return status;
}

int find_error(int code, const char **name, const char **words)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *name = errors[i].name;
            *words = errors[i].words;
            return 1;
        }
    return 0;
}
