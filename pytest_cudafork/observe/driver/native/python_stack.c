/* Reads the Python stack of this thread. It never waits for the GIL: the thread that holds it may
 * be waiting for the lock of the driver in which this thread stands.
 */
#define _GNU_SOURCE
#include "python_api.h"
#include "witness.h"

#include <dlfcn.h>
#include <string.h>

enum { FRAMES = 1024 };

/* Looked up anew at each touch: Python may have been loaded since, touches are rare, and a table
 * filled by two threads would need a lock around the loader. */
static int find_python(struct python *python)
{
    int complete = 1;

    memset(python, 0, sizeof *python);
#define FIND(type, name, arguments) \
    *(void **)&python->name = dlsym(RTLD_DEFAULT, #name);
#define REQUIRE(type, name, arguments) complete &= python->name != NULL;
    PYTHON_NEEDED(FIND)
    PYTHON_OPTIONAL(FIND)
    PYTHON_NEEDED(REQUIRE)
#undef FIND
#undef REQUIRE
    return complete && python->Py_IsInitialized();
}

/* Not PyGILState_Check: it answers 1 to everybody once a subinterpreter was made. */
static int holds_gil(const struct python *python)
{
    void *mine = python->PyGILState_GetThisThreadState(), *current = NULL;

    if (python->PyThreadState_GetUnchecked)
        current = python->PyThreadState_GetUnchecked();
    else if (python->_PyThreadState_UncheckedGet)
        current = python->_PyThreadState_UncheckedGet();
    return mine && mine == current;
}

static void add_unicode(const struct python *python, void *unicode, struct text *out)
{
    ssize_t size = 0;
    const char *utf8 = unicode ? python->PyUnicode_AsUTF8AndSize(unicode, &size) : "?";
    void *bytes = NULL;

    if (!unicode)
        size = 1;
    else if (!utf8) { /* lone surrogates: a path that is not UTF-8 */
        python->PyErr_Clear();
        bytes = python->PyUnicode_AsEncodedString(unicode, "utf-8", "surrogateescape");
        if (!bytes) {
            python->PyErr_Clear();
            bytes = python->PyUnicode_AsEncodedString(unicode, "utf-8", "backslashreplace");
        }
        utf8 = bytes ? python->PyBytes_AsString(bytes) : NULL;
        size = utf8 ? python->PyBytes_Size(bytes) : 0;
    }
    text_json(out, utf8 ? utf8 : "", (size_t)size);
    if (bytes)
        python->Py_DecRef(bytes);
}

static void add_attribute(const struct python *python, void *code, const char *name,
                          const char *older, struct text *out)
{
    void *value = python->PyObject_GetAttrString(code, name);

    if (!value) {
        python->PyErr_Clear();
        value = older ? python->PyObject_GetAttrString(code, older) : NULL;
        if (!value)
            python->PyErr_Clear();
    }
    add_unicode(python, value, out);
    if (value)
        python->Py_DecRef(value);
}

static void add_frame(const struct python *python, void *frame, struct text *out)
{
    void *code = python->PyFrame_GetCode(frame);
    void *flags = python->PyObject_GetAttrString(code, "co_flags");

    text_word(out, "[");
    add_attribute(python, code, "co_filename", NULL, out);
    text_word(out, ",");
    text_number(out, python->PyFrame_GetLineNumber(frame));
    text_word(out, ",");
    add_attribute(python, code, "co_qualname", "co_name", out);
    text_word(out, ",");
    text_number(out, flags ? python->PyLong_AsLong(flags) : -1);
    text_word(out, "]");
    if (!flags)
        python->PyErr_Clear();
    else
        python->Py_DecRef(flags);
    python->Py_DecRef(code);
}

/* Needs the GIL. A collection is held off: making frame objects allocates, and a finalizer could
 * release the GIL inside the driver's lock. */
static void walk_frames(const struct python *python, struct text *out)
{
    void *type, *value, *traceback, *frame, *back;
    int collecting = python->PyGC_Disable(), count = 0;

    python->PyErr_Fetch(&type, &value, &traceback);
    frame = python->PyEval_GetFrame(); /* borrowed, unlike those that PyFrame_GetBack returns */
    while (frame && count < FRAMES) {
        if (count)
            text_word(out, ",");
        add_frame(python, frame, out);
        back = python->PyFrame_GetBack(frame);
        if (count++)
            python->Py_DecRef(frame);
        frame = back;
    }
    if (frame && count)
        python->Py_DecRef(frame);
    python->PyErr_Restore(type, value, traceback);
    if (collecting)
        python->PyGC_Enable();
}

const char *python_stack(struct text *out)
{
    struct python python;
    const char *how = "none";

    text_word(out, "[");
    if (find_python(&python)) {
        if (holds_gil(&python)) {
            walk_frames(&python, out);
            how = "held";
        } else if (dump_stack(&python, out) > 0)
            how = "dumped";
    }
    text_word(out, "]");
    return how;
}
