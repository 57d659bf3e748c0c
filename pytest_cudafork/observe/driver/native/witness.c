/* State of this process (clean, initialized, poisoned) and how a fork changes it. Touches are
 * written down in record.c.
 */
#define _GNU_SOURCE
#include "witness.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

void record_forget(void);

static atomic_int state;
static atomic_long touches;
static atomic_int unwritten; /* touches that were counted and are not in the ledger yet */
static atomic_int known_pid;
static void (*child_hook)(void);
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void witness_lock(void) { pthread_mutex_lock(&mutex); }
void witness_unlock(void) { pthread_mutex_unlock(&mutex); }
void witness_at_fork_child(void (*hook)(void)) { child_hook = hook; }

static void become_child(void)
{
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;

    mutex = fresh; /* its holder may be a thread that does not exist here */
    atomic_store(&known_pid, getpid());
    atomic_store(&touches, 0);
    atomic_store(&unwritten, 0); /* they are of threads that do not exist here */
    if (atomic_load(&state) != CLEAN)
        atomic_store(&state, POISONED);
    record_forget();
    if (child_hook)
        child_hook();
}

/* A child made by a bare clone() passes by the handlers of pthread_atfork. */
static void notice_fork(void)
{
    if (atomic_load(&known_pid) != getpid())
        become_child();
}

__attribute__((constructor)) static void witness_load(void)
{
    atomic_store(&known_pid, getpid());
    pthread_atfork(NULL, NULL, become_child);
}

void witness_count(struct touch *touch)
{
    int clean = CLEAN;

    notice_fork();
    atomic_fetch_add(&unwritten, 1); /* first: whoever sees the state can wait for the record */
    touch->poisoned = atomic_load(&state) == POISONED;
    touch->again = atomic_fetch_add(&touches, 1) > 0;
    atomic_compare_exchange_strong(&state, &clean, INITIALIZED);
}

void witness_written(void) { atomic_fetch_sub(&unwritten, 1); }

int witness_state(void)
{
    notice_fork();
    return atomic_load(&state);
}

void witness_reset(int to)
{
    atomic_store(&state, to);
    atomic_store(&touches, 0);
    witness_lock();
    record_forget();
    witness_unlock();
}

EXPORT void cudafork_remember(const char *ledger, const char *owner)
{
    record_remember(ledger, owner);
}

EXPORT int cudafork_state(void) { return witness_state(); }

EXPORT long cudafork_touch_count(void)
{
    notice_fork();
    return atomic_load(&touches);
}

EXPORT int cudafork_unwritten(void)
{
    notice_fork();
    return atomic_load(&unwritten);
}
