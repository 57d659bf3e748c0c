/* Calls what the phantom exports in random order from several threads, which fork now and then
 * where FORKS is set: SECONDS THREADS SEED. The functions and their table, calls.inc, are written by
 * native.py.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 8192, SMALL = 64, STACK_MOST = 40 };

struct chance {
    uint64_t state;
    char buffers[2][BUFFER];
};

static atomic_long calls;
/* By seconds(): those of time(2) are whole ones, and the first may be over at once. */
static double until;

static uint64_t next(struct chance *c)
{
    c->state ^= c->state << 13;
    c->state ^= c->state >> 7;
    c->state ^= c->state << 17;
    return c->state;
}

static const char *const words[] = {
    "", "absent", "sm_90", "sm_90x2", "sm_90x16", "sm_90x17", "sm_", "0000:01:00.0", "ffffffff:ff:ff.f",
    "cuInit", "cuCtxCreate", "cuMemAlloc", "cuGetProcAddress", "GPU-0", "\xff\xfe\xc3\x28", "\xed\xb3\xbf",
    "a name that is longer than any that somebody would think of, and then some more of it, and more",
};

static const char *some_text(struct chance *c)
{
    size_t at = next(c) % (sizeof words / sizeof *words + 1);

    return at < sizeof words / sizeof *words ? words[at] : NULL;
}

/* What is there before a call is how much may be written, for those that read it. */
static void *some_buffer(struct chance *c)
{
    char *buffer = c->buffers[next(c) % 2];

    if (next(c) % 16 == 0)
        return NULL;
    memset(buffer, 0, BUFFER);
    *(uint32_t *)buffer = (uint32_t)(next(c) % SMALL);
    return buffer;
}

static void *some_handle(struct chance *c)
{
    return next(c) % 4 ? (void *)(uintptr_t)(next(c) % 20) : *(void **)c->buffers[next(c) % 2];
}

static int some_size(struct chance *c) { return (int)(next(c) % (BUFFER / 32)); }

static int some_number(struct chance *c)
{
    return next(c) % 8 ? (int)(next(c) % 20) - 2 : (int)next(c);
}

#include "calls.inc"

#define ENTRY(name) extern int name();
#include "entry_points.inc"
#undef ENTRY

static const struct {
    const char *name;
    int (*function)();
} refused[] = {
#define ENTRY(name) {#name, name},
#include "entry_points.inc"
#undef ENTRY
};

static int is_answered(const char *name)
{
    for (size_t i = 0; i < sizeof answered / sizeof *answered; i++)
        if (strcmp(answered[i].name, name) == 0)
            return 1;
    return 0;
}

/* Stacks of different depths are different records. */
__attribute__((noinline)) static void step(struct chance *c, int depth)
{
    if (depth) {
        step(c, depth - 1);
        __asm__ volatile("");
        return;
    }
    size_t at = next(c) % (2 * sizeof answered / sizeof *answered);

    if (at < sizeof answered / sizeof *answered)
        answered[at].call(c);
    else {
        at = next(c) % (sizeof refused / sizeof *refused);
        if (!is_answered(refused[at].name))
            refused[at].function();
    }
}

static int in_child(struct chance *c)
{
    for (int i = 0; i < 20; i++)
        step(c, 0);
    return 0;
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *work(void *seed)
{
    struct chance *c = calloc(1, sizeof *c);

    c->state = (uintptr_t)seed * 0x9e3779b97f4a7c15ULL + 1;
    for (long i = 0; seconds() < until; i++) {
        step(c, (int)(next(c) % STACK_MOST));
        atomic_fetch_add(&calls, 1);
        if (FORKS && i % 20000 == 19999) {
            int status = 0;
            pid_t child = fork();

            if (child == 0)
                _exit(in_child(c));
            if (child > 0 && (waitpid(child, &status, 0) < 0 || status))
                exit(3);
        }
    }
    free(c);
    return NULL;
}

int main(int count, char **given)
{
    int threads = count == 4 ? atoi(given[2]) : 0;
    pthread_t made[64];

    if (threads < 1 || threads > 64)
        return 2;
    until = seconds() + atoi(given[1]);
    for (int i = 0; i < threads; i++)
        pthread_create(&made[i], NULL, work, (void *)(uintptr_t)(i + 1 + 64 * atoi(given[3])));
    for (int i = 0; i < threads; i++)
        pthread_join(made[i], NULL);
    printf("%ld calls\n", atomic_load(&calls));
    return 0;
}
