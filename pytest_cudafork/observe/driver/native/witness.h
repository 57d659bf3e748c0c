/* The witness core shared by the phantom driver and the injection library: state of this process
 * and its record in the ledger.
 */
#ifndef CUDAFORK_WITNESS_H
#define CUDAFORK_WITNESS_H

#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

enum { CLEAN = 0, INITIALIZED = 1, POISONED = 2 };

enum { NO_RESULT = -1 }; /* the entry point has not answered yet; every CUresult is positive */

struct touch {
    const char *witness; /* "phantom" or "injection" */
    const char *entry;   /* "cuInit" */
    void *caller;        /* return address in the caller, or NULL if only a backtrace can tell */
    int poisoned;        /* filled by witness_count */
    int again;           /* filled by witness_count */
    int result;          /* what the entry point answers, or NO_RESULT */
};

/* Counts a touch and moves the state; fills `poisoned` and `again`. Takes no lock. What it has
 * counted is unwritten until witness_record returns. */
void witness_count(struct touch *touch);

/* Writes the touch to the ledger, once per distinct stack. Never waits for the GIL. */
void witness_record(const struct touch *touch);
void witness_written(void);

/* Where touches go, and for whom, while the environment does not say; "" for nowhere. A path that
 * is too long is cut, so its touches go nowhere. */
void record_remember(const char *ledger, const char *owner);

int witness_state(void);
void witness_reset(int state);

/* `hook` runs in a forked child after its state is known; async-signal-safe calls only. */
void witness_at_fork_child(void (*hook)(void));

/* One mutex for the tables of this library. Never held while calling Python or the loader: a
 * thread inside dlopen may itself be on its way here. */
void witness_lock(void);
void witness_unlock(void);

/* A growing string. A failed allocation sets `failed`; later additions are then ignored. */
struct text {
    char *data;
    size_t length, capacity;
    int failed;
};

void text_add(struct text *text, const char *data, size_t length);
void text_word(struct text *text, const char *word);
void text_number(struct text *text, long long number);
/* A JSON string. Bytes that are not UTF-8 become what os.fsdecode makes of them (U+DC80..DCFF). */
void text_json(struct text *text, const char *data, size_t length);

/* Appends the Python stack of this thread as a JSON array, innermost first; says how it was had:
 * "held", "dumped" or "none". */
const char *python_stack(struct text *out);

/* The part of python_stack that works without the GIL; returns the number of frames. */
struct python;
int dump_stack(const struct python *python, struct text *out);

/* Appends the distinct objects of the C backtrace, innermost first, as a JSON array; copies to
 * `caller` (of `size` bytes) the object that holds the address `at`, or, if that is NULL, the
 * first object that is not the driver. */
void native_stack(struct text *out, void *at, char *caller, size_t size);

#endif
