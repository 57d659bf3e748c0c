/* Tells a Python callable when a C function of another extension module has failed.
 *
 * The function stays the object that it is, for everybody who has it or compares with it: only a
 * pointer that CPython calls is exchanged. For a type that is tp_new, for a method the pointer in its
 * PyMethodDef. For a function it is the vectorcall of the object, which is NULL before: the hash of
 * a function is made from the pointer in its PyMethodDef, and tables of functions would miss it.
 * Where these places are Python's side knows (compat/cpython_layout.py). All of this runs with the
 * GIL held.
 */
#define _GNU_SOURCE
#include "witness.h"

#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef void *(*function)(void *self, void *arguments, void *keywords);

enum { HOOKS_MOST = 200 };

static struct {
    int used;
    function original; /* stays when it is taken back: a call may be under way */
    void **place;
    void *before; /* what stood at the place */
    void *self;   /* of a function; methods and types get theirs */
    void *tell, *nothing; /* what is called, and Python's None */
    int always;           /* also when it has not failed */
} hooks[HOOKS_MOST];

static struct {
    void (*PyErr_Fetch)(void **, void **, void **);
    void (*PyErr_NormalizeException)(void **, void **, void **);
    void (*PyErr_Restore)(void *, void *, void *);
    void *(*PyObject_CallFunctionObjArgs)(void *, ...);
    void *(*PyTuple_New)(ssize_t);
    int (*PyTuple_SetItem)(void *, ssize_t, void *);
    void *(*PyTuple_GetItem)(void *, ssize_t);
    ssize_t (*PyTuple_Size)(void *);
    void *(*PyDict_New)(void);
    int (*PyDict_SetItem)(void *, void *, void *);
    void (*Py_IncRef)(void *);
    void (*Py_DecRef)(void *);
} python;

/* What the callable returns takes the place of the failure; None leaves that as it is. */
static void *after(int number, void *result, void *arguments, void *keywords)
{
    void *type = NULL, *error = NULL, *traceback = NULL, *answer;
    void *nothing = hooks[number].nothing;
    void *tell = hooks[number].tell;

    if (!result) {
        python.PyErr_Fetch(&type, &error, &traceback);
        python.PyErr_NormalizeException(&type, &error, &traceback);
    }
    python.Py_IncRef(tell); /* it may take itself away */
    answer = python.PyObject_CallFunctionObjArgs(tell, arguments, keywords ? keywords : nothing,
                                                 error ? error : nothing, NULL);
    python.Py_DecRef(tell);
    if (answer == nothing) {
        python.Py_DecRef(answer);
        if (!result)
            python.PyErr_Restore(type, error, traceback);
        return result;
    }
    if (result)
        python.Py_DecRef(result);
    if (type)
        python.Py_DecRef(type);
    if (error)
        python.Py_DecRef(error);
    if (traceback)
        python.Py_DecRef(traceback);
    return answer; /* or NULL, with the error that it raised */
}

static void *call(int number, void *self, void *arguments, void *keywords)
{
    function original = hooks[number].original;
    void *result = original(self, arguments, keywords);

    return result && !hooks[number].always ? result : after(number, result, arguments, keywords);
}

/* Packs the arguments of a vectorcall; returns 0 where there is no memory. */
static int pack(void *const *given, ssize_t count, void *names, void **arguments, void **keywords)
{
    ssize_t named = names ? python.PyTuple_Size(names) : 0;

    *keywords = NULL;
    if (!(*arguments = python.PyTuple_New(count)))
        return 0;
    for (ssize_t at = 0; at < count; at++) {
        python.Py_IncRef(given[at]);
        python.PyTuple_SetItem(*arguments, at, given[at]);
    }
    if (named && !(*keywords = python.PyDict_New()))
        return 0;
    for (ssize_t at = 0; at < named; at++)
        if (python.PyDict_SetItem(*keywords, python.PyTuple_GetItem(names, at), given[count + at]))
            return 0;
    return 1;
}

static void *vector_call(int number, void *const *given, size_t count, void *names)
{
    void *arguments, *keywords, *result = NULL;

    count &= ~((size_t)1 << (8 * sizeof count - 1)); /* PY_VECTORCALL_ARGUMENTS_OFFSET */
    if (pack(given, (ssize_t)count, names, &arguments, &keywords))
        result = call(number, hooks[number].self, arguments, keywords);
    if (arguments)
        python.Py_DecRef(arguments);
    if (keywords)
        python.Py_DecRef(keywords);
    return result;
}

/* A place can hold a pointer alone, so each hook needs a function of its own. */
#define TEN(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) X(n##8) X(n##9)
#define ALL(X) \
    TEN(X, 1) TEN(X, 2) TEN(X, 3) TEN(X, 4) TEN(X, 5) TEN(X, 6) TEN(X, 7) TEN(X, 8) TEN(X, 9) \
    TEN(X, 10) TEN(X, 11) TEN(X, 12) TEN(X, 13) TEN(X, 14) TEN(X, 15) TEN(X, 16) TEN(X, 17) \
    TEN(X, 18) TEN(X, 19) TEN(X, 20)
#define DEFINE(n) \
    static void *call_##n(void *self, void *arguments, void *keywords) \
    { \
        return call(n - 10, self, arguments, keywords); \
    } \
    static void *vector_##n(void *self, void *const *given, size_t count, void *names) \
    { \
        (void)self; \
        return vector_call(n - 10, given, count, names); \
    }
ALL(DEFINE)
#define NAME(n) {(void *)call_##n, (void *)vector_##n},
static void *const calls[][2] = {ALL(NAME)};
_Static_assert(sizeof calls / sizeof *calls == HOOKS_MOST, "one for each hook");

static int find_python(void)
{
#define FIND(name) *(void **)&python.name = dlsym(RTLD_DEFAULT, #name);
    FIND(PyErr_Fetch)
    FIND(PyErr_NormalizeException)
    FIND(PyErr_Restore)
    FIND(PyObject_CallFunctionObjArgs)
    FIND(PyTuple_New)
    FIND(PyTuple_SetItem)
    FIND(PyTuple_GetItem)
    FIND(PyTuple_Size)
    FIND(PyDict_New)
    FIND(PyDict_SetItem)
    FIND(Py_IncRef)
    FIND(Py_DecRef)
#undef FIND
    for (void **one = (void **)&python; one < (void **)(&python + 1); one++)
        if (!*one)
            return 0;
    return 1;
}

/* Returns the number of the hook, or -1. `method` and `self` are those of a function, whose place is
 * its vectorcall; else `method` is NULL. The caller keeps `tell` alive for good. */
EXPORT int cudafork_hook(void **place, void *method, void *self, void *tell, void *nothing,
                         int always)
{
    int number = 0;

    if (!find_python())
        return -1;
    witness_lock();
    while (number < HOOKS_MOST && hooks[number].used)
        number++;
    if (number < HOOKS_MOST) {
        hooks[number].used = 1;
        hooks[number].tell = tell;
        hooks[number].nothing = nothing;
        hooks[number].always = always;
        hooks[number].self = self;
        hooks[number].place = place;
        hooks[number].before = *place;
        *(void **)&hooks[number].original = method ? method : *place;
        *place = calls[number][method != NULL];
    } else
        number = -1;
    witness_unlock();
    return number;
}

/* Returns -1, and leaves the hook, where somebody else has put another function over it. */
EXPORT int cudafork_unhook(int number)
{
    int answer = -1;

    witness_lock();
    if (*hooks[number].place == calls[number][0] || *hooks[number].place == calls[number][1]) {
        *hooks[number].place = hooks[number].before;
        hooks[number].used = 0;
        answer = 0;
    }
    witness_unlock();
    return answer;
}
