/* Overwrites the first instructions of cuInit with a jump. The page is private to the process, so
 * the parent and the file keep theirs; in the child cuInit can only fail, so nothing of value is
 * lost. On any doubt nothing is changed: the child's touch then goes unrecorded.
 */
#define _GNU_SOURCE
#include "child_patch.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LANDING_BYTES = 4, ADDRESS_BYTES = 8 };

#if defined(__x86_64__)
static const unsigned char landing[LANDING_BYTES] = {0xF3, 0x0F, 0x1E, 0xFA}; /* endbr64 */
static const unsigned char jump[] = {0x49, 0xBB, 0, 0, 0, 0, 0, 0, 0, 0,      /* mov r11, ... */
                                     0x41, 0xFF, 0xE3};                       /* jmp r11 */
enum { ADDRESS_AT = 2 };
#elif defined(__aarch64__)
static const unsigned char landing[LANDING_BYTES] = {0x5F, 0x24, 0x03, 0xD5}; /* bti c */
static const unsigned char jump[] = {0x50, 0x00, 0x00, 0x58,                  /* ldr x16, +8 */
                                     0x00, 0x02, 0x1F, 0xD6,                  /* br x16 */
                                     0, 0, 0, 0, 0, 0, 0, 0};
enum { ADDRESS_AT = 8 };
#else
static const unsigned char landing[LANDING_BYTES], jump[ADDRESS_BYTES];
enum { ADDRESS_AT = 0 };
#define NO_PATCH
#endif

static struct {
    unsigned char *at; /* NULL: not prepared */
    unsigned char code[sizeof jump];
    unsigned char before[sizeof jump]; /* what must stand there when the jump is written */
    unsigned char *page;
    size_t page_bytes;
    int protection;
} plan;

struct segment {
    uintptr_t address;
    int protection; /* -1: not found */
};

static int find_segment(struct dl_phdr_info *object, size_t size, void *data)
{
    struct segment *wanted = data;

    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_LOAD && wanted->address >= start &&
            wanted->address + LANDING_BYTES + sizeof jump <= start + header->p_memsz) {
            wanted->protection = (header->p_flags & PF_R ? PROT_READ : 0) |
                                 (header->p_flags & PF_W ? PROT_WRITE : 0) |
                                 (header->p_flags & PF_X ? PROT_EXEC : 0);
            return 1;
        }
    }
    return 0;
}

/* The size of the function at `address`, or 0 if it is not the function the symbol names. musl does
 * not tell it; NVIDIA's driver does not run there either. */
static size_t function_size(void *address)
{
#ifdef __GLIBC__
    Dl_info info;
    ElfW(Sym) *symbol = NULL;

    if (!dladdr1(address, &info, (void **)&symbol, RTLD_DL_SYMENT) || !symbol)
        return 0;
    return info.dli_saddr == address && ELF64_ST_TYPE(symbol->st_info) == STT_FUNC
               ? symbol->st_size : 0;
#else
    (void)address;
    return 0;
#endif
}

void child_patch_prepare(void (*target)(void))
{
#ifdef NO_PATCH
    (void)target;
#else
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    unsigned char *at = driver ? dlsym(driver, "cuInit") : NULL;
    struct segment segment = {(uintptr_t)at, -1};
    uintptr_t mask = ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1), first, last;

    if (driver)
        dlclose(driver); /* the reference that RTLD_NOLOAD took */
    if (!at || plan.at || function_size(at) < LANDING_BYTES + sizeof jump)
        return;
    dl_iterate_phdr(find_segment, &segment);
    if (segment.protection != (PROT_READ | PROT_EXEC))
        return;
    if (memcmp(at, landing, LANDING_BYTES) == 0)
        at += LANDING_BYTES; /* the processor may insist on it at the target of a call */
    memcpy(plan.code, jump, sizeof jump);
    memcpy(plan.code + ADDRESS_AT, &target, ADDRESS_BYTES);
    memcpy(plan.before, at, sizeof jump);
    first = (uintptr_t)at & mask;
    last = ((uintptr_t)at + sizeof jump - 1) & mask;
    plan.page = (unsigned char *)first;
    plan.page_bytes = last - first + (~mask + 1);
    plan.protection = segment.protection;
    plan.at = at;
#endif
}

void child_patch_apply(void)
{
    if (!plan.at || memcmp(plan.at, plan.before, sizeof plan.before) != 0)
        return; /* not prepared, done already, or another tool was here */
    /* All three rights at once: if a policy forbids that, the page is left as it is. */
    if (mprotect(plan.page, plan.page_bytes, PROT_READ | PROT_WRITE | PROT_EXEC) < 0)
        return;
    memcpy(plan.at, plan.code, sizeof plan.code);
    __builtin___clear_cache((char *)plan.at, (char *)plan.at + sizeof plan.code);
    mprotect(plan.page, plan.page_bytes, plan.protection);
}
