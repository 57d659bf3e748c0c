/* The Python stack of a thread that does not hold the GIL, by CPython's own crash dump: exported by
 * some versions, else reached through a signal that faulthandler was told to dump at. The descriptor
 * that it dumps into is opened and closed here.
 */
#define _GNU_SOURCE
#include "python_api.h"
#include "witness.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DUMP_BYTES = 256 * 1024 };

enum { ARMS = 8 };

/* What cudafork_arm was given, and what it then looked like; under the witness lock. A session
 * inside a session arms anew, and its end gives the older one back. */
static struct arm {
    int signum, fd, pid;
    dev_t device;
    ino_t inode;
    void (*handler)(int);
} arms[ARMS];
static int arm_count;

static int memory_file(void) { return (int)syscall(SYS_memfd_create, "cudafork", 1 /* CLOEXEC */); }

static int handler_of(int signum, void (**handler)(int))
{
    struct sigaction action;

    if (sigaction(signum, NULL, &action) < 0)
        return -1;
    *handler = action.sa_handler;
    return *handler == SIG_DFL || *handler == SIG_IGN ? -1 : 0;
}

static int remember(struct arm *arm, int signum, int fd)
{
    struct stat file;

    if (fstat(fd, &file) < 0 || handler_of(signum, &arm->handler) < 0)
        return -1;
    arm->signum = signum;
    arm->device = file.st_dev;
    arm->inode = file.st_ino;
    arm->pid = getpid();
    arm->fd = fd;
    return 0;
}

/* Arms; with a negative `fd` takes the last arming back. Returns 0, or -1 if nothing was done. */
EXPORT int cudafork_arm(int signum, int fd)
{
    int answer = -1;

    witness_lock();
    if (fd < 0 && arm_count > 0) {
        arm_count--;
        answer = 0;
    } else if (fd >= 0 && arm_count < ARMS && (answer = remember(&arms[arm_count], signum, fd)) == 0)
        arm_count++;
    witness_unlock();
    return answer;
}

/* Opens a file under a number that is free, which it was not when it was armed: a program has closed
 * all its files, as daemons do. Where another thread was quicker, the number is that thread's. */
static int lend_file(int number)
{
    int fresh = memory_file(), taken;

    if (fresh < 0 || fresh == number)
        return fresh >= 0;
    taken = fcntl(fresh, F_DUPFD_CLOEXEC, number);
    close(fresh);
    if (taken >= 0 && taken != number)
        close(taken);
    return taken == number;
}

enum target { NOWHERE, OURS, LENT };

/* Says whether the signal still does what it did when armed, and whose the descriptor is: a program
 * that closes all its files may have opened one of its own under that number. In a forked child a
 * fresh file takes the number over, since the old one is shared with the parent. A file that is lent
 * is to be closed after the dump. */
static enum target still_armed(struct arm *arm)
{
    struct stat file;
    void (*handler)(int);
    int fresh, moved;

    if (handler_of(arm->signum, &handler) < 0 || handler != arm->handler)
        return NOWHERE;
    if (fstat(arm->fd, &file) < 0)
        return lend_file(arm->fd) ? LENT : NOWHERE;
    if (file.st_dev != arm->device || file.st_ino != arm->inode)
        return NOWHERE;
    if (arm->pid == getpid())
        return OURS;
    fresh = memory_file();
    if (fresh < 0)
        return NOWHERE;
    moved = dup3(fresh, arm->fd, O_CLOEXEC);
    close(fresh);
    return moved >= 0 && remember(arm, arm->signum, arm->fd) == 0 ? OURS : NOWHERE;
}

static int raise_here(int signum)
{
    sigset_t ours, before;
    int raised;

    sigemptyset(&ours);
    sigaddset(&ours, signum);
    if (pthread_sigmask(SIG_UNBLOCK, &ours, &before) != 0)
        return -1;
    raised = pthread_kill(pthread_self(), signum); /* handled before it returns */
    if (sigismember(&before, signum))
        pthread_sigmask(SIG_BLOCK, &ours, NULL);
    return raised;
}

static ssize_t read_back(int fd, char *data, size_t size)
{
    size_t length = 0;
    ssize_t part;

    while (length < size && (part = pread(fd, data + length, size - length, (off_t)length)) > 0)
        length += (size_t)part;
    return (ssize_t)length;
}

/* Returns the number of bytes dumped. */
static ssize_t take_dump(const struct python *python, char *data, size_t size)
{
    void *thread = python->PyGILState_GetThisThreadState();
    struct arm *arm;
    enum target target;
    ssize_t length = 0;
    int fd;

    if (!thread)
        return 0;
    if (python->_Py_DumpTraceback) {
        if ((fd = memory_file()) < 0)
            return 0;
        python->_Py_DumpTraceback(fd, thread);
        length = read_back(fd, data, size);
        close(fd);
        return length;
    }
    witness_lock();
    arm = &arms[arm_count ? arm_count - 1 : 0];
    target = arm_count ? still_armed(arm) : NOWHERE;
    if (target != NOWHERE && ftruncate(arm->fd, 0) == 0 && lseek(arm->fd, 0, SEEK_SET) == 0 &&
        raise_here(arm->signum) == 0)
        length = read_back(arm->fd, data, size);
    if (target == LENT)
        close(arm->fd);
    witness_unlock();
    return length;
}

/* The dump spells characters outside ASCII as \xHH, \uHHHH or \UHHHHHHHH; a backslash of the path
 * itself it leaves alone. Returns the bytes of `at` that were read. */
static size_t add_character(const char *at, size_t left, struct text *bytes)
{
    size_t digits = at[0] != '\\' || left < 2 ? 0
                    : at[1] == 'x' ? 2 : at[1] == 'u' ? 4 : at[1] == 'U' ? 8 : 0;
    char hex[9] = {0}, utf8[4], *end;
    unsigned long point;
    size_t length;

    if (!digits || left < digits + 2) {
        text_add(bytes, at, 1);
        return 1;
    }
    memcpy(hex, at + 2, digits);
    point = strtoul(hex, &end, 16);
    if (*end || (point >= 0x20 && point < 0x7F) || point > 0x10FFFF) {
        text_add(bytes, at, 1);
        return 1;
    }
    if (point >= 0xDC80 && point <= 0xDCFF) { /* a byte that was not UTF-8 */
        utf8[0] = (char)(point & 0xFF);
        length = 1;
    } else if (point < 0x80) {
        utf8[0] = (char)point;
        length = 1;
    } else if (point < 0x800) {
        utf8[0] = (char)(0xC0 | point >> 6);
        length = 2;
    } else if (point < 0x10000) {
        utf8[0] = (char)(0xE0 | point >> 12);
        length = 3;
    } else {
        utf8[0] = (char)(0xF0 | point >> 18);
        length = 4;
    }
    for (size_t i = 1; i < length; i++)
        utf8[i] = (char)(0x80 | (point >> 6 * (length - 1 - i) & 0x3F));
    text_add(bytes, utf8, length);
    return digits + 2;
}

static void add_dumped(const char *data, size_t length, struct text *out)
{
    struct text bytes = {0};

    for (size_t at = 0; at < length;)
        at += add_character(data + at, length - at, &bytes);
    text_json(out, bytes.data ? bytes.data : "", bytes.length);
    free(bytes.data);
}

/* `  File "NAME", line N in FUNCTION`; NAME may hold quotes, so it is read from its end. */
static int add_line(const char *line, size_t length, int first, struct text *out)
{
    static const char head[] = "  File \"", middle[] = "\", line ";
    const char *name = line + sizeof head - 1, *end = line + length, *number = NULL, *in;

    if (length < sizeof head || memcmp(line, head, sizeof head - 1) != 0)
        return 0;
    for (const char *at = name; at + sizeof middle - 1 <= end; at++)
        if (memcmp(at, middle, sizeof middle - 1) == 0)
            number = at + sizeof middle - 1;
    if (!number || !(in = memmem(number, (size_t)(end - number), " in ", 4)))
        return 0;
    text_word(out, first ? "[" : ",[");
    add_dumped(name, (size_t)(number - (sizeof middle - 1) - name), out);
    text_word(out, ",");
    text_number(out, strtol(number, NULL, 10));
    text_word(out, ",");
    add_dumped(in + 4, (size_t)(end - in - 4), out);
    text_word(out, ",-1]"); /* the dump does not tell the flags */
    return 1;
}

int dump_stack(const struct python *python, struct text *out)
{
    char *data = malloc(DUMP_BYTES), *line, *end;
    ssize_t length = data ? take_dump(python, data, DUMP_BYTES - 1) : 0;
    int frames = 0;

    if (data)
        data[length] = '\0'; /* strtol stops here at the latest */
    for (line = data; line && line < data + length; line = end + 1) {
        end = memchr(line, '\n', (size_t)(data + length - line));
        if (!end)
            end = data + length;
        frames += add_line(line, (size_t)(end - line), frames == 0, out);
    }
    free(data);
    return frames;
}
