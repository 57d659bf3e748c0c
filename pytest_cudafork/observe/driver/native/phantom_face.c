/* The figures behind a face. They are those of a typical card of that capability, near enough for
 * code that chooses a path by them; nothing is ever run with them.
 */
#include "phantom_face.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define KIB(n) ((n) * 1024)
#define MIB(n) ((n) * 1024 * 1024)
#define GIB(n) ((size_t)(n) << 30)

/* The model of a capability is the last one that is not above it. */
static const struct model models[] = {
    {70, "V100-SXM2-32GB", 80, KIB(96), KIB(96), 2048, 32, MIB(6), 1530000, 877000, 4096, GIB(32)},
    {75, "T4", 40, KIB(64), KIB(64), 1024, 16, MIB(4), 1590000, 5001000, 256, GIB(15)},
    {80, "A100-SXM4-80GB", 108, KIB(164), KIB(163), 2048, 32, MIB(40), 1410000, 1593000, 5120,
     GIB(80)},
    {86, "A10", 72, KIB(100), KIB(99), 1536, 16, MIB(6), 1695000, 6251000, 384, GIB(22)},
    {89, "L40S", 142, KIB(100), KIB(99), 1536, 24, MIB(96), 2520000, 9001000, 384, GIB(45)},
    {90, "H100 80GB HBM3", 132, KIB(228), KIB(227), 2048, 32, MIB(50), 1980000, 2619000, 5120,
     GIB(80)},
    {100, "B200", 148, KIB(228), KIB(227), 2048, 32, MIB(126), 1965000, 3996000, 8192, GIB(179)},
    {103, "B300 SXM6 AC", 148, KIB(228), KIB(227), 2048, 32, MIB(126), 1920000, 3996000, 8192,
     GIB(268)},
    {120, "RTX PRO 6000 Blackwell", 188, KIB(100), KIB(99), 1536, 24, MIB(128), 2617000, 14001000,
     512, GIB(95)},
};

static void choose_model(struct face *face)
{
    size_t count = sizeof models / sizeof *models, index = 0;

    while (index + 1 < count && models[index + 1].capability <= face->capability)
        index++;
    face->model = models[index];
}

int face_parse(const char *text, struct face *face)
{
    char *end;
    long capability, devices = 1;

    memset(face, 0, sizeof *face);
    if (!text || strcmp(text, "absent") == 0)
        return 0;
    if (strncmp(text, "sm_", 3) != 0 || text[3] < '1' || text[3] > '9')
        return -1;
    capability = strtol(text + 3, &end, 10);
    if (capability < 10 || capability > 999)
        return -1;
    if (*end == 'x') {
        if (end[1] < '1' || end[1] > '9')
            return -1;
        devices = strtol(end + 1, &end, 10);
    }
    if (*end || devices > DEVICES_MOST)
        return -1;
    face->capability = (int)capability;
    face->devices = (int)devices;
    for (int device = 0; device < face->devices; device++)
        face->number[device] = device;
    choose_model(face);
    return 0;
}

/* The device of a name in CUDA_VISIBLE_DEVICES: a number, or a UUID or the beginning of one. -1 for
 * the name of none, or of several.
 */
static int named(const struct face *face, const char *name, size_t length)
{
    char uuid[48];
    int found = -1;

    if (length && length < 10 && strspn(name, "0123456789") >= length)
        return strtol(name, NULL, 10) < face->devices ? (int)strtol(name, NULL, 10) : -1;
    if (length < 5 || strncmp(name, "GPU-", 4) != 0)
        return -1;
    for (int device = 0; device < face->devices; device++) {
        face_uuid_text(device, uuid, sizeof uuid);
        if (strncasecmp(name, uuid, length) == 0) {
            if (found >= 0)
                return -1;
            found = device;
        }
    }
    return found;
}

void face_show(struct face *face, const char *visible)
{
    static const char spaces[] = " \t\n\v\f\r";
    int number[DEVICES_MOST], count = 0;

    for (;; visible++) {
        visible += strspn(visible, spaces);
        size_t length = strcspn(visible, ","), name = length;
        while (name && strchr(spaces, visible[name - 1]))
            name--;
        int device = named(face, visible, name);
        if (device < 0)
            break;
        for (int other = 0; other < count; other++)
            if (number[other] == device) {
                face->devices = 0;
                return;
            }
        number[count++] = device;
        visible += length;
        if (!*visible)
            break;
    }
    face->devices = count;
    memcpy(face->number, number, (size_t)count * sizeof *number);
}

static int limit(int attribute)
{
    switch (attribute) {
    case 1: case 2: case 3: return 1024;    /* threads per block, block x and y */
    case 4: return 64;                      /* block z */
    case 5: return 2147483647;              /* grid x */
    case 6: case 7: return 65535;           /* grid y and z */
    case 8: return KIB(48);                 /* shared memory per block */
    case 9: return KIB(64);                 /* constant memory */
    case 10: return 32;                     /* warp */
    case 11: return 2147483647;             /* pitch */
    case 12: case 82: return KIB(64);       /* registers per block and multiprocessor */
    case 14: case 30: return 512;           /* texture and surface alignment */
    case 21: case 22: case 55: case 77: return 131072;
    case 23: case 57: case 56: case 61: return 65536;
    case 24: case 25: case 26: case 58: case 59: case 60: return 16384;
    case 27: case 28: case 42: case 45: case 46: case 52: case 53: case 62: case 63: case 66:
    case 67: case 73: case 74: return 32768;
    case 29: case 43: case 54: case 64: case 65: case 68: return 2046;
    case 51: return 32;                     /* texture pitch alignment */
    case 69: return 268435456;
    case 70: case 72: return 131072;
    case 71: return 65000;
    case 87: return 2;                      /* float64 at half the rate of float32 */
    default: return -1;
    }
}

/* Attributes that are yes or no; those of newer cards with the capability they came with. */
static int has(const struct face *face, int attribute)
{
    switch (attribute) {
    case 15: case 19: case 31: case 32: case 41: case 44: case 78: case 79: case 80: case 83:
    case 86: case 89: case 90: case 91: case 92: case 93: case 94: case 95: case 96: case 98:
    case 99: case 102: case 103: case 113: case 114: case 115: case 122: case 123: case 125:
        return 1;
    case 107: case 110: case 112: case 116: case 121: case 124: case 119:
        return face->capability >= 80;
    case 120: case 127: case 129: case 128: case 132:
        return face->capability >= 90;
    default:
        return 0;
    }
}

int face_attribute(const struct face *face, int attribute, int device)
{
    const struct model *model = &face->model;
    int fixed = limit(attribute);

    if (fixed >= 0)
        return fixed;
    switch (attribute) {
    case 13: return model->clock_khz;
    case 16: return model->multiprocessors;
    case 33: return device + 1;             /* PCI bus */
    case 36: return model->memory_khz;
    case 37: return model->bus_bits;
    case 38: return model->cache_bytes;
    case 39: return model->threads_per_sm;
    case 40: return 3;                      /* copy engines */
    case 75: return face->capability / 10;
    case 76: return face->capability % 10;
    case 81: return model->shared_per_sm;
    case 85: return device;
    case 97: return model->shared_per_block;
    case 106: return model->blocks_per_sm;
    case 108: return face->capability >= 80 ? model->cache_bytes / 8 * 5 : 0;
    case 109: return face->capability >= 80 ? MIB(128) : 0;
    case 111: return face->capability >= 80 ? 1024 : 0;
    case 118: return face->capability >= 90 ? 200 : 0;
    case 126: return face->capability >= 90 ? 4 : 1;
    case 131: case 134: return -1;          /* no NUMA node */
    default: return has(face, attribute);
    }
}

void face_uuid(int device, unsigned char uuid[16])
{
    memset(uuid, 0, 16);
    memcpy(uuid, "cudafork", 8);
    uuid[15] = (unsigned char)device;
}

void face_uuid_text(int device, char *text, size_t size)
{
    unsigned char id[16];

    face_uuid(device, id);
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             id[0], id[1], id[2], id[3], id[4], id[5], id[6], id[7], id[8], id[9], id[10], id[11],
             id[12], id[13], id[14], id[15]);
}

void face_pci_id(int device, char *text, size_t size)
{
    snprintf(text, size, "00000000:%02X:00.0", device + 1);
}
