/* Turns cuInit of the real driver into a jump, in a forked child only. */
#ifndef CUDAFORK_CHILD_PATCH_H
#define CUDAFORK_CHILD_PATCH_H

/* Finds cuInit and remembers how to replace it by `target`. Changes nothing. Call it in the process
 * that initialized: the loader must not be asked anything in a forked child. */
void child_patch_prepare(void (*target)(void));

/* Replaces it in this process. Async-signal-safe; does nothing if anything is not as expected. */
void child_patch_apply(void);

#endif
