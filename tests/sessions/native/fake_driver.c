/* A stand-in for NVIDIA's driver, for tests of the injection: its first cuInit takes a lock, loads
 * the library that CUDA_INJECTION64_PATH names and calls InitializeInjection with the lock held.
 * In a forked child it answers 3 and calls nothing, as the real one does.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized_by;
static volatile int stops_here;

__attribute__((visibility("default"), noinline)) int cuInit(unsigned flags)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");
    const char *pause = getenv("FAKE_DRIVER_PAUSE_US");

    if (initialized_by)
        return initialized_by == getpid() ? 0 : 3;
    pthread_mutex_lock(&lock);
    if (!initialized_by) {
        void *library = path ? dlopen(path, RTLD_NOW) : NULL;
        int (*inject)(void) = NULL;
        if (pause)
            usleep((unsigned)atoi(pause)); /* so that another thread comes to wait for the lock */
        if (library)
            inject = (int (*)(void))dlsym(library, "InitializeInjection");
        if (inject)
            inject();
        initialized_by = getpid();
        stops_here = (int)flags;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((visibility("default"))) int cuDeviceGetCount(int *count)
{
    *count = 1;
    return initialized_by == getpid() ? 0 : 3;
}
