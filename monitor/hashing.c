/* Short keyed hashes of texts: see hashing.py.

   BLAKE2b as RFC 7693 describes it, without its keyed mode. Names are those of the RFC, sections 2 and 3. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

enum { BLOCK = 128, WORDS = 8, LONGEST_KEY = 64, LONGEST_DIGEST = 64, LONGEST_USE = 16, USE_AT = 48 };

static const uint64_t IV[WORDS] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

typedef struct {
    PyObject_HEAD
    uint64_t h[WORDS];
    unsigned char key[LONGEST_KEY];
    Py_ssize_t key_length, size;
} Hasher;

/* A word as its bytes, the lowest first, or what is said so. */
static uint64_t little(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

static uint64_t word(const unsigned char *bytes) {
    uint64_t found;
    memcpy(&found, bytes, sizeof found);
    return little(found);
}

static uint64_t turned(uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

/* The mixing function, with two words of the message. */
#define G(a, b, c, d, x, y)                                                                                            \
    v[a] += v[b] + m[x], v[d] = turned(v[d] ^ v[a], 32), v[c] += v[d], v[b] = turned(v[b] ^ v[c], 24);                 \
    v[a] += v[b] + m[y], v[d] = turned(v[d] ^ v[a], 16), v[c] += v[d], v[b] = turned(v[b] ^ v[c], 63)

/* One round, with a permutation of the message's words: the columns, then the diagonals. */
#define ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15)                                    \
    G(0, 4, 8, 12, s0, s1);                                                                                            \
    G(1, 5, 9, 13, s2, s3);                                                                                            \
    G(2, 6, 10, 14, s4, s5);                                                                                           \
    G(3, 7, 11, 15, s6, s7);                                                                                           \
    G(0, 5, 10, 15, s8, s9);                                                                                           \
    G(1, 6, 11, 12, s10, s11);                                                                                         \
    G(2, 7, 8, 13, s12, s13);                                                                                          \
    G(3, 4, 9, 14, s14, s15)

/* The compression function F: t is how many bytes of the message there are up to the end of this block. */
static void compress(uint64_t h[WORDS], const unsigned char block[BLOCK], uint64_t t, int last) {
    uint64_t m[16], v[16];
    for (int i = 0; i < 16; i++) {
        m[i] = word(block + 8 * i);
    }
    for (int i = 0; i < WORDS; i++) {
        v[i] = h[i];
        v[i + WORDS] = IV[i];
    }
    v[12] ^= t;
    v[14] ^= last ? ~UINT64_C(0) : 0;
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4);
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8);
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13);
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9);
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11);
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10);
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5);
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0);
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3);
    for (int i = 0; i < WORDS; i++) {
        h[i] ^= v[i] ^ v[i + WORDS];
    }
}

static PyObject *digest(Hasher *self, PyObject *text) {
    Py_ssize_t left;
    const char *at = PyUnicode_AsUTF8AndSize(text, &left);
    if (at == NULL) {
        return NULL;
    }
    uint64_t h[WORDS], done = 0;
    unsigned char block[BLOCK];
    Py_ssize_t filled = self->key_length;
    memcpy(h, self->h, sizeof h);
    memcpy(block, self->key, LONGEST_KEY);
    /* The last block is the one behind which nothing follows, be it full or not. */
    while (filled + left > BLOCK) {
        memcpy(block + filled, at, (size_t)(BLOCK - filled));
        at += BLOCK - filled;
        left -= BLOCK - filled;
        done += BLOCK;
        compress(h, block, done, 0);
        filled = 0;
    }
    memcpy(block + filled, at, (size_t)left);
    filled += left;
    memset(block + filled, 0, (size_t)(BLOCK - filled));
    compress(h, block, done + (uint64_t)filled, 1);
    for (int i = 0; i < WORDS; i++) {
        h[i] = little(h[i]);
    }
    return PyBytes_FromStringAndSize((const char *)h, self->size);
}

static int init(Hasher *self, PyObject *arguments, PyObject *keywords) {
    const char *key, *use;
    Py_ssize_t key_length, size, use_length;
    if (keywords != NULL && PyDict_GET_SIZE(keywords) > 0) {
        PyErr_SetString(PyExc_TypeError, "no argument has a name here");
        return -1;
    }
    if (!PyArg_ParseTuple(arguments, "y#ny#", &key, &key_length, &size, &use, &use_length)) {
        return -1;
    }
    if (key_length > LONGEST_KEY || size < 1 || size > LONGEST_DIGEST || use_length > LONGEST_USE) {
        PyErr_Format(PyExc_ValueError, "a key of %zd bytes, a hash of %zd, a use of %zd; expected at most 64, 64 and 16",
                     key_length, size, use_length);
        return -1;
    }
    unsigned char parameters[8 * WORDS] = {(unsigned char)size, 0, 1, 1};
    memcpy(parameters + USE_AT, use, (size_t)use_length);
    for (int i = 0; i < WORDS; i++) {
        self->h[i] = IV[i] ^ word(parameters + 8 * i);
    }
    memset(self->key, 0, sizeof self->key);
    memcpy(self->key, key, (size_t)key_length);
    self->key_length = key_length;
    self->size = size;
    return 0;
}

static void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef METHODS[] = {{"digest", (PyCFunction)digest, METH_O, NULL}, {NULL, NULL, 0, NULL}};

static PyType_Slot HASHER_SLOTS[] = {
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, init}, {Py_tp_dealloc, dealloc}, {Py_tp_methods, METHODS}, {0, NULL},
};

static PyType_Spec HASHER = {
    .name = "monitor.hashing.Hasher", .basicsize = sizeof(Hasher), .flags = Py_TPFLAGS_DEFAULT, .slots = HASHER_SLOTS};

static int execute(PyObject *module) {
    PyObject *type = PyType_FromSpec(&HASHER);
    if (type == NULL) {
        return -1;
    }
    int failed = PyModule_AddObjectRef(module, "Hasher", type);
    Py_DECREF(type);
    return failed;
}

static PyModuleDef_Slot SLOTS[] = {{Py_mod_exec, execute}, {0, NULL}};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "hashing", .m_slots = SLOTS};

PyMODINIT_FUNC PyInit_hashing(void) { return PyModuleDef_Init(&MODULE); }
