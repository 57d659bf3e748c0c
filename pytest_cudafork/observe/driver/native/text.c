/* Growing strings and JSON escapes. */
#include "witness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_add(struct text *text, const char *data, size_t length)
{
    if (text->failed || length == 0)
        return;
    if (text->length + length > text->capacity) {
        size_t capacity = 2 * (text->length + length) + 256;
        char *grown = realloc(text->data, capacity);
        if (!grown) {
            text->failed = 1;
            return;
        }
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->length, data, length);
    text->length += length;
}

void text_word(struct text *text, const char *word) { text_add(text, word, strlen(word)); }

void text_number(struct text *text, long long number)
{
    char digits[32];

    snprintf(digits, sizeof digits, "%lld", number);
    text_word(text, digits);
}

/* Length of the UTF-8 sequence at `at`, or 0 if it is not one (overlong and surrogates included). */
static size_t utf8_length(const unsigned char *at, size_t left)
{
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xC2 ? 0 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3
                  : at[0] < 0xF5 ? 4 : 0;

    if (length == 0 || length > left)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    if ((at[0] == 0xE0 && at[1] < 0xA0) || (at[0] == 0xED && at[1] > 0x9F) ||
        (at[0] == 0xF0 && at[1] < 0x90) || (at[0] == 0xF4 && at[1] > 0x8F))
        return 0;
    return length;
}

void text_json(struct text *text, const char *data, size_t length)
{
    const unsigned char *at = (const unsigned char *)data, *end = at + length;
    char escape[8];

    text_word(text, "\"");
    while (at < end) {
        size_t sequence = utf8_length(at, (size_t)(end - at));
        if (sequence == 0)
            snprintf(escape, sizeof escape, "\\udc%02x", *at);
        else if (sequence == 1 && (*at < 0x20 || *at == 0x7F))
            snprintf(escape, sizeof escape, "\\u%04x", *at);
        else if (*at == '"' || *at == '\\')
            snprintf(escape, sizeof escape, "\\%c", *at);
        else {
            text_add(text, (const char *)at, sequence);
            at += sequence;
            continue;
        }
        text_word(text, escape);
        at++;
    }
    text_word(text, "\"");
}
