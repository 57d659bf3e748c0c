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
static int inside, waiting; /* threads that have the lock, and that want it */
static volatile int stops_here;

__attribute__((visibility("default"))) int fake_driver_is_entered(void)
{
    return __atomic_load_n(&inside, __ATOMIC_SEQ_CST);
}

__attribute__((visibility("default"), noinline)) int cuInit(unsigned flags)
{
    const char *path = getenv("CUDA_INJECTION64_PATH");

    if (initialized_by)
        return initialized_by == getpid() ? 0 : 3;
    __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&lock);
    __atomic_sub_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    if (!initialized_by) {
        void *library = path ? dlopen(path, RTLD_NOW) : NULL;
        int (*inject)(void) = NULL;
        if (getenv("FAKE_DRIVER_WAITS")) /* until another thread has come to wait for the lock */
            while (!__atomic_load_n(&waiting, __ATOMIC_SEQ_CST))
                usleep(100);
        if (library)
            inject = (int (*)(void))dlsym(library, "InitializeInjection");
        if (inject)
            inject();
        initialized_by = getpid();
        stops_here = (int)flags;
    }
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((visibility("default"))) int cuDeviceGetCount(int *count)
{
    *count = 1;
    return initialized_by == getpid() ? 0 : 3;
}
