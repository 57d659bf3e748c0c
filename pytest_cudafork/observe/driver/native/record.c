/* Writes a touch as one line of the ledger, and remembers which stacks this process has written.
 * Python stacks are read in python_stack.c.
 */
#define _GNU_SOURCE
#include "witness.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SEEN_SLOTS = 1024, SEEN_LIMIT = 768 };

static uint64_t seen[SEEN_SLOTS]; /* hashes, 0 is an empty slot; under the witness lock */
static int seen_count;
static atomic_llong last_time;
static __thread int busy; /* a touch made while one is being written: counted, not written */

/* Needs the witness lock, or a forked child that has one thread only. */
void record_forget(void)
{
    memset(seen, 0, sizeof seen);
    seen_count = 0;
    busy = 0;
}

static uint64_t hash(uint64_t state, const char *data, size_t length)
{
    for (size_t i = 0; i < length; i++)
        state = (state ^ (unsigned char)data[i]) * 0x100000001b3ULL; /* FNV-1a */
    return (state ^ 0xFF) * 0x100000001b3ULL;                        /* ends the field */
}

/* A variable is looked up once: another thread may set it between two looks. */
static uint64_t hash_word(uint64_t state, const char *word)
{
    return hash(state, word, strlen(word));
}

/* Says whether `key` is new here. A full table calls everything new: a record twice is better
 * than none. */
static int first_time(uint64_t key)
{
    int new = 1;
    size_t slot;

    key += key == 0;
    witness_lock();
    for (slot = key % SEEN_SLOTS; seen[slot] && new; slot = (slot + 1) % SEEN_SLOTS)
        new = seen[slot] != key;
    if (new && seen_count < SEEN_LIMIT) {
        seen[slot] = key;
        seen_count++;
    }
    witness_unlock();
    return new;
}

/* CLOCK_MONOTONIC in nanoseconds, never the same twice: it is half of the record's id. */
static long long unique_time(void)
{
    struct timespec now;
    long long time, last = atomic_load(&last_time);

    clock_gettime(CLOCK_MONOTONIC, &now);
    time = now.tv_sec * 1000000000LL + now.tv_nsec;
    do {
        if (time <= last)
            time = last + 1;
    } while (!atomic_compare_exchange_weak(&last_time, &last, time));
    return time;
}

/* getenv may race with a setenv of another thread; the window is the libc's, and the variables
 * read here live as long as the process. A program that runs with more rights than who started it
 * obeys none of them. */
static const char *variable(const char *name)
{
    const char *value = secure_getenv(name);

    return value ? value : "";
}

/* Which file the ledger is, to know it again without a descriptor; under the witness lock. */
static struct {
    uint64_t path; /* the hash of its name; 0: nothing is known */
    dev_t device;
    ino_t number;
} ledger_file;

/* What is there later may have come in the ledger's place, unless the session says that it begins
 * `anew`. */
static void know_file(const char *path, const struct stat *status, int anew)
{
    uint64_t key = hash_word(0, path);

    witness_lock();
    if (anew || ledger_file.path != key) {
        ledger_file.path = key;
        ledger_file.device = status->st_dev;
        ledger_file.number = status->st_ino;
    }
    witness_unlock();
}

/* Whether what is at `path` is the file that was there before, as far as that is known. */
static int is_known_file(const char *path, const struct stat *status)
{
    int other;

    witness_lock();
    other = ledger_file.path == hash_word(0, path) &&
            (ledger_file.device != status->st_dev || ledger_file.number != status->st_ino);
    witness_unlock();
    return !other;
}

/* What cudafork_remember kept: a test may have cleared the environment for a while. */
struct kept {
    char ledger[4096], owner[64];
};
static const struct kept nothing_kept;
/* Put in place as a whole, for threads that touch meanwhile; old ones are never freed. */
static _Atomic(const struct kept *) kept = &nothing_kept;

void record_remember(const char *ledger, const char *owner)
{
    struct kept *new = malloc(sizeof *new);
    struct stat status;

    if (ledger && !lstat(ledger, &status))
        know_file(ledger, &status, 1);
    if (!new)
        return;
    snprintf(new->ledger, sizeof new->ledger, "%s", ledger ? ledger : "");
    snprintf(new->owner, sizeof new->owner, "%s", owner ? owner : "");
    atomic_store(&kept, new);
}

static const char *variable_or(const char *name, const char *kept)
{
    const char *value = variable(name);

    return *value ? value : kept;
}

static void add_string(struct text *line, const char *key, const char *value)
{
    text_word(line, key);
    text_json(line, value, strlen(value));
}

static void add_number(struct text *line, const char *key, long long value)
{
    text_word(line, key);
    text_number(line, value);
}

static void add_common(struct text *line)
{
    long long time = unique_time(), pid = getpid();

    text_word(line, "\n{\"k\":\"touch\",\"id\":\"");
    text_number(line, pid);
    add_number(line, "-", time);
    add_number(line, "\",\"t\":", time);
    add_number(line, ",\"pid\":", pid);
    add_number(line, ",\"tid\":", syscall(SYS_gettid));
    add_number(line, ",\"ppid\":", getppid());
    add_string(line, ",\"owner\":", variable_or("_CUDAFORK_OWNER", atomic_load(&kept)->owner));
    add_string(line, ",\"test\":", variable("PYTEST_CURRENT_TEST"));
    add_string(line, ",\"phase\":", variable("_CUDAFORK_PHASE"));
}

/* Adds the owner's execute bit to the mode of the file, if it is the same file: what it holds cannot
 * be looked at without a descriptor. */
static void mark_mode(const char *path)
{
    struct stat status;

    if (!lstat(path, &status) && S_ISREG(status.st_mode) && is_known_file(path, &status))
        (void)!chmod(path, (status.st_mode & 07777) | S_IXUSR);
}

/* Overwrites a digit in the first record of the ledger: a full disk takes no further record, but it
 * does take that. A file that begins otherwise has come in the ledger's place. Where no descriptor
 * is left, or no file may be written, the file's mode says it (_LOST_MODE in ledger.py). */
static void mark_loss(const char *path)
{
    static const char head[] = "\n{\"lost\": ";
    char found[sizeof head - 1];
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t written = 0;

    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE)
            mark_mode(path);
        return;
    }
    if (pread(fd, found, sizeof found, 0) == sizeof found && !memcmp(found, head, sizeof found))
        do
            written = pwrite(fd, "1", 1, sizeof found);
        while (written < 0 && errno == EINTR);
    close(fd);
    if (written < 0)
        mark_mode(path);
}

/* One write() to an O_APPEND descriptor is not torn by other writers; one that is cut short loses
 * itself only, since every record begins with a newline. The session has made the file: one that
 * is gone belongs to a session that is over. */
static void append(const char *path, const struct text *line)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    struct stat status;
    ssize_t written;

    if (fd < 0) {
        mark_loss(path);
        return;
    }
    if (!fstat(fd, &status))
        know_file(path, &status, 0);
    do
        written = write(fd, line->data, line->length);
    while (written < 0 && errno == EINTR);
    close(fd);
    if (written != (ssize_t)line->length)
        mark_loss(path);
}

static void write_touch(const struct touch *touch, const char *ledger)
{
    struct text stack = {0}, libraries = {0}, line = {0};
    char caller[4096];
    const char *gil = python_stack(&stack);
    uint64_t key = hash_word(0xcbf29ce484222325ULL, touch->entry);

    /* The same line in another test is another finding. */
    key = hash(key, stack.data, stack.data ? stack.length : 0);
    key = hash_word(key, variable("PYTEST_CURRENT_TEST"));
    key = hash_word(key, variable("_CUDAFORK_PHASE"));
    key = hash_word(key, ledger);
    if (first_time(key)) {
        native_stack(&libraries, touch->caller, caller, sizeof caller);
        add_common(&line);
        add_string(&line, ",\"witness\":", touch->witness);
        add_string(&line, ",\"entry\":", touch->entry);
        add_string(&line, ",\"library\":", caller);
        text_word(&line, ",\"libraries\":");
        text_add(&line, libraries.data, libraries.length);
        text_word(&line, touch->poisoned ? ",\"poisoned\":true" : ",\"poisoned\":false");
        text_word(&line, touch->again ? ",\"again\":true" : ",\"again\":false");
        text_word(&line, ",\"stack\":");
        text_add(&line, stack.data, stack.length);
        add_string(&line, ",\"gil\":", gil);
        text_word(&line, ",\"result\":");
        if (touch->result == NO_RESULT)
            text_word(&line, "null");
        else
            text_number(&line, touch->result);
        text_word(&line, "}");
        if (line.failed || stack.failed || libraries.failed)
            mark_loss(ledger);
        else
            append(ledger, &line);
    }
    free(stack.data);
    free(libraries.data);
    free(line.data);
}

void witness_record(const struct touch *touch)
{
    const char *ledger = variable_or("_CUDAFORK_LEDGER", atomic_load(&kept)->ledger);
    int error = errno;

    if (*ledger && !busy) {
        busy = 1;
        write_touch(touch, ledger);
        busy = 0;
    }
    witness_written();
    errno = error;
}
