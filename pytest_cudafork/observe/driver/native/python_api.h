/* The few functions of Python that the witness uses, found at run time: one build then serves every
 * Python version, and a process without Python. Headers of Python are not used.
 */
#ifndef CUDAFORK_PYTHON_API_H
#define CUDAFORK_PYTHON_API_H

#include <sys/types.h>

/* In every supported version (3.10 to 3.14). */
#define PYTHON_NEEDED(X) \
    X(int, Py_IsInitialized, (void)) \
    X(void, Py_DecRef, (void *)) \
    X(void *, PyGILState_GetThisThreadState, (void)) \
    X(void *, PyEval_GetFrame, (void)) \
    X(void *, PyFrame_GetBack, (void *)) \
    X(void *, PyFrame_GetCode, (void *)) \
    X(int, PyFrame_GetLineNumber, (void *)) \
    X(void *, PyObject_GetAttrString, (void *, const char *)) \
    X(const char *, PyUnicode_AsUTF8AndSize, (void *, ssize_t *)) \
    X(void *, PyUnicode_AsEncodedString, (void *, const char *, const char *)) \
    X(char *, PyBytes_AsString, (void *)) \
    X(ssize_t, PyBytes_Size, (void *)) \
    X(long, PyLong_AsLong, (void *)) \
    X(void, PyErr_Fetch, (void **, void **, void **)) \
    X(void, PyErr_Restore, (void *, void *, void *)) \
    X(void, PyErr_Clear, (void)) \
    X(int, PyGC_Enable, (void)) \
    X(int, PyGC_Disable, (void))

/* The thread state that is current, without an error if there is none: renamed in 3.13. The dump
 * is exported by 3.11 and 3.12 only. */
#define PYTHON_OPTIONAL(X) \
    X(void *, PyThreadState_GetUnchecked, (void)) \
    X(void *, _PyThreadState_UncheckedGet, (void)) \
    X(void, _Py_DumpTraceback, (int, void *))

struct python {
#define FIELD(type, name, arguments) type(*name) arguments;
    PYTHON_NEEDED(FIELD)
    PYTHON_OPTIONAL(FIELD)
#undef FIELD
};

#endif
