/* Tells a Python callable when a C function of another extension module has failed, or is called.
 *
 * The function stays the object that it is, for everybody who has it or compares with it: only a
 * pointer that CPython calls is exchanged. For a type that is tp_new, for a method the pointer in its
 * PyMethodDef. For a function it is the vectorcall of the object, which is NULL before: the hash of
 * a function is made from the pointer in its PyMethodDef, and tables of functions would miss it.
 * Where these places are Python's side knows (compat/cpython_layout.py).
 *
 * All of this runs with the GIL held, also what puts a hook in and takes it back: Python's side
 * calls these by ctypes.PYFUNCTYPE. The function itself may let go of the GIL, or run Python code,
 * so that a hook is taken back, and perhaps put in again, while a call of its function is under way.
 *
 * A hook is for one place and one function for good, and is used for no other when it is free
 * again: a class that was derived from a type meanwhile has inherited its tp_new, which stays ours.
 */
#define _GNU_SOURCE
#include "witness.h"

#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>

typedef void *(*function)(void *self, void *arguments, void *keywords);

enum { HOOKS_MOST = 200 };
enum { AFTER_FAILURES, AFTER_ALL, BEFORE };

static struct hook {
    int used;
    long times;        /* how often it was put in */
    function original; /* stays when it is taken back: a call may be under way */
    void **place;      /* likewise; NULL if it was never used */
    void *before;      /* what stood at the place */
    void *self;        /* of a function; methods and types get theirs */
    void *target;      /* the callable, which has to live as long as its place is ours */
    void *tell;        /* what is called; NULL for nothing */
    void *nothing;     /* Python's None */
    void *interpreter; /* whose objects these are */
    int when;          /* AFTER_FAILURES, AFTER_ALL or BEFORE */
} hooks[HOOKS_MOST];

static struct {
    int ready;
    void *(*PyErr_Occurred)(void);
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
    int (*Py_EnterRecursiveCall)(const char *);
    void (*Py_LeaveRecursiveCall)(void);
    void *(*PyInterpreterState_Get)(void);
    void (*Py_IncRef)(void *);
    void (*Py_DecRef)(void *);
} python;

/* Returns what the callable returns; NULL where it raises. */
static void *ask(const struct hook *hook, void *arguments, void *keywords, void *error)
{
    void *nothing = hook->nothing;
    void *tell = hook->tell;
    void *answer;

    python.Py_IncRef(tell); /* it may take itself away */
    answer = python.PyObject_CallFunctionObjArgs(tell, arguments, keywords ? keywords : nothing,
                                                 error ? error : nothing, NULL);
    python.Py_DecRef(tell);
    return answer;
}

/* What the callable returns takes the place of the call; None lets it be made. */
static void *before(const struct hook *hook, void *self, void *arguments, void *keywords)
{
    function original = hook->original;
    void *nothing = hook->nothing;
    void *answer = ask(hook, arguments, keywords, NULL);

    if (answer != nothing)
        return answer; /* or NULL, with the error that it raised */
    python.Py_DecRef(answer);
    return original(self, arguments, keywords);
}

/* What the callable returns takes the place of the failure; None leaves that as it is. */
static void *after(const struct hook *hook, void *result, void *arguments, void *keywords)
{
    void *type = NULL, *error = NULL, *traceback = NULL, *answer;
    void *nothing = hook->nothing;

    if (!result) {
        python.PyErr_Fetch(&type, &error, &traceback);
        python.PyErr_NormalizeException(&type, &error, &traceback);
    }
    answer = ask(hook, arguments, keywords, error);
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
    const struct hook *hook = &hooks[number];
    long times = hook->times;
    void *result;

    if (hook->when == BEFORE) {
        if (hook->tell && python.PyInterpreterState_Get() == hook->interpreter)
            return before(hook, self, arguments, keywords);
        return hook->original(self, arguments, keywords);
    }
    result = hook->original(self, arguments, keywords);
    if (result && hook->when != AFTER_ALL)
        return result;
    if (!hook->tell || hook->times != times) /* it was taken back meanwhile */
        return result;
    if (!result == !python.PyErr_Occurred()) /* a fault of the function, which CPython tells */
        return result;
    if (python.PyInterpreterState_Get() != hook->interpreter)
        return result;
    return after(hook, result, arguments, keywords);
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
    if (pack(given, (ssize_t)count, names, &arguments, &keywords)) {
        /* as CPython does around such a call: nothing else counts it */
        if (!python.Py_EnterRecursiveCall(" while calling a Python object")) {
            result = call(number, hooks[number].self, arguments, keywords);
            python.Py_LeaveRecursiveCall();
        }
    }
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
    if (python.ready)
        return 1;
#define FIND(name) *(void **)&python.name = dlsym(RTLD_DEFAULT, #name);
    FIND(PyErr_Occurred)
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
    FIND(Py_EnterRecursiveCall)
    FIND(Py_LeaveRecursiveCall)
    FIND(PyInterpreterState_Get)
    FIND(Py_IncRef)
    FIND(Py_DecRef)
#undef FIND
    python.ready = python.PyErr_Occurred && python.PyErr_Fetch && python.PyErr_NormalizeException &&
                   python.PyErr_Restore && python.PyObject_CallFunctionObjArgs &&
                   python.PyTuple_New && python.PyTuple_SetItem && python.PyTuple_GetItem &&
                   python.PyTuple_Size && python.PyDict_New && python.PyDict_SetItem &&
                   python.Py_EnterRecursiveCall && python.Py_LeaveRecursiveCall &&
                   python.PyInterpreterState_Get && python.Py_IncRef && python.Py_DecRef;
    return python.ready;
}

/* Returns a hook that may be used for a function at a place; HOOKS_MOST if there is none. */
static int free_hook(void **place, function original)
{
    int found = HOOKS_MOST;

    for (int number = HOOKS_MOST - 1; number >= 0; number--) {
        const struct hook *hook = &hooks[number];

        if (!hook->used && hook->place == place && hook->original == original)
            return number;
        if (!hook->place)
            found = number;
    }
    return found;
}

/* Returns the number of the hook, or -1. `method` and `self` are those of a function, whose place is
 * its vectorcall; else `method` is NULL. */
EXPORT int cudafork_hook(void **place, void *method, void *self, void *target, void *tell,
                         void *nothing, int when)
{
    function original;
    struct hook *hook;
    int number;

    if (!find_python())
        return -1;
    *(void **)&original = method ? method : *place;
    number = free_hook(place, original);
    if (number == HOOKS_MOST)
        return -1;
    python.Py_IncRef(target);
    python.Py_IncRef(tell);
    hook = &hooks[number];
    hook->used = 1;
    hook->times++;
    hook->target = target;
    hook->tell = tell;
    hook->nothing = nothing;
    hook->interpreter = python.PyInterpreterState_Get();
    hook->when = when;
    hook->self = self;
    hook->place = place;
    hook->before = *place;
    hook->original = original;
    *place = calls[number][method != NULL];
    return number;
}

/* Nothing is told from here on. Returns -1, and leaves the place, where somebody else has put
 * another function over ours. */
EXPORT int cudafork_unhook(int number)
{
    struct hook *hook = &hooks[number];
    void *tell = hook->tell, *target = NULL;
    int answer = -1;

    hook->tell = NULL;
    if (*hook->place == calls[number][0] || *hook->place == calls[number][1]) {
        *hook->place = hook->before;
        hook->used = 0;
        target = hook->target;
        answer = 0;
    }
    if (tell)
        python.Py_DecRef(tell);
    if (target)
        python.Py_DecRef(target);
    return answer;
}
