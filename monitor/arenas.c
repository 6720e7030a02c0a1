/* Huge pages for Python's objects: see arenas.py.

   Python asks for arenas of 1 MiB, half of a huge page of x86-64 and of most others. They are mapped in pairs, each
   pair where a huge page may begin. Of pairs that are free, 32 MiB are kept for the next batch, as memory.py has glibc
   do; others are given back. With other sizes, on other systems than Linux, and where Python has no global lock,
   which is held here, everything stays as it is. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#if defined(MADV_HUGEPAGE) && !defined(Py_GIL_DISABLED)
#define OWN_ARENAS

#define ARENA ((size_t)1 << 20)
#define PAIR (2 * ARENA)
#define KEPT 16

/* At the beginning of what is free. */
typedef struct Free {
    struct Free *next;
} Free;

static PyObjectArenaAllocator usual;
static Free *halves = NULL; /* the other arena of the pair is in use */
static Free *pairs = NULL;
static int kept = 0; /* pairs */

static void push(Free **list, void *freed) {
    Free *first = freed;
    first->next = *list;
    *list = first;
}

static void *pop(Free **list) {
    Free *first = *list;
    *list = first->next;
    return first;
}

static char *map_pair(void) {
    char *mapped = mmap(NULL, 2 * PAIR, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    size_t before = (PAIR - (uintptr_t)mapped % PAIR) % PAIR;
    if (before != 0)
        munmap(mapped, before);
    munmap(mapped + before + PAIR, PAIR - before);
    /* Refused where the kernel was built without: then it is memory like any other. */
    madvise(mapped + before, PAIR, MADV_HUGEPAGE);
    return mapped + before;
}

static void *allocate(void *context, size_t size) {
    if (size != ARENA)
        return usual.alloc(context, size);
    if (halves != NULL)
        return pop(&halves);
    char *pair;
    if (pairs != NULL) {
        pair = pop(&pairs);
        kept--;
    } else if ((pair = map_pair()) == NULL) {
        return usual.alloc(context, size);
    }
    push(&halves, pair + ARENA);
    return pair;
}

static void release(void *context, void *arena, size_t size) {
    /* Those from before are hardly ever there. If one is, it is memory of the same kind. */
    if (size != ARENA || (uintptr_t)arena % ARENA != 0) {
        usual.free(context, arena, size);
        return;
    }
    uintptr_t other = (uintptr_t)arena ^ ARENA;
    Free **at = &halves;
    while (*at != NULL && (uintptr_t)*at != other)
        at = &(*at)->next;
    if (*at == NULL) {
        push(&halves, arena);
        return;
    }
    pop(at);
    void *pair = (void *)((uintptr_t)arena & ~(uintptr_t)ARENA);
    if (kept == KEPT) {
        munmap(pair, PAIR);
    } else {
        push(&pairs, pair);
        kept++;
    }
}

#endif

static PyObject *use_huge_pages(PyObject *module, PyObject *ignored) {
    (void)module;
    (void)ignored;
#ifdef OWN_ARENAS
    if (usual.alloc == NULL) {
        PyObject_GetArenaAllocator(&usual);
        PyObjectArenaAllocator own = {usual.ctx, allocate, release};
        PyObject_SetArenaAllocator(&own);
    }
#endif
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {{"use_huge_pages", use_huge_pages, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "arenas", .m_size = -1, .m_methods = METHODS};

PyMODINIT_FUNC PyInit_arenas(void) { return PyModule_Create(&MODULE); }
