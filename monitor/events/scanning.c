/* Reads events that are in order in every respect, as nearly all are: see scanning.py.

   What it accepts is a part of what the slow way (msgspec and decoder.py) accepts, with the same result. Whatever is
   unusual or wrong is left to that, so nothing is refused here. A payload is a part of an object of bytes. A loop may run
   past its end, and what was read is not accepted then; the zero byte behind the object is no part of any token, so none
   runs past that. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <string.h>

enum { KNOWN_BITS = 13, LONGEST_KNOWN = 64, MOST_ITEMS = 64, MOST_DIGITS = 15 };
/* As in decoder.py, records.py and instant.py. */
enum { LONGEST_KIND = 64, LONGEST_LATENCY_MS = 86400000 };
static const long long LATEST_MS = 253402300799999;

typedef enum { ID, NAME, KIND, ANY, TIME, ITEMS, POSITION, LATENCY, SCORE } Type;

/* What a field is that is not there; one that may be None may be null as well. */
typedef enum { REQUIRED, NONE, ONE } Absent;

typedef struct {
    const char *name;
    Py_ssize_t length;
    Type type;
    Absent absent;
} Field;

typedef struct {
    const char *at, *end;
    Py_ssize_t max_id, max_items;
} Reading;

typedef struct {
    const char *at;
    Py_ssize_t length;
    int ascii;
} Text;

typedef struct {
    long long digits;
    int decimals;
} Number;

#define FIELD(name, type, absent) {name, sizeof(name) - 1, type, absent}

static const Field RESPONSE[] = {
    FIELD("response_id", ID, REQUIRED), FIELD("timestamp", TIME, REQUIRED), FIELD("experiment", NAME, REQUIRED),
    FIELD("variant", NAME, REQUIRED),   FIELD("items", ITEMS, REQUIRED),    FIELD("user_id", ID, NONE),
    FIELD("query_id", ID, NONE),        FIELD("category", ANY, NONE),       FIELD("latency_ms", LATENCY, NONE),
};
static const Field FEEDBACK[] = {
    FIELD("feedback_id", ID, REQUIRED), FIELD("response_id", ID, REQUIRED), FIELD("timestamp", TIME, REQUIRED),
    FIELD("kind", KIND, REQUIRED),      FIELD("user_id", ID, NONE),         FIELD("item_id", ID, NONE),
    FIELD("score", SCORE, ONE),
};

static const Field ITEM[] = {FIELD("item_id", ID, REQUIRED), FIELD("position", POSITION, REQUIRED)};

/* For the place of a field. */
enum { UNKNOWN = -1, UNUSUAL = -2 };

/* Functions return 1, or an object, and stand behind what they have read. 0 or NULL stands for what is unusual, and for
   an error that Python has raised. */

static inline int is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t'; }

static inline void skip_space(Reading *reading) {
    while (is_space(*reading->at))
        reading->at++;
}

static inline int take(Reading *reading, char expected) {
    skip_space(reading);
    if (*reading->at != expected)
        return 0;
    reading->at++;
    return 1;
}

static inline int is_digit(char byte) { return '0' <= byte && byte <= '9'; }

static inline int is_plain(char byte) { return (unsigned char)byte >= ' ' && byte != '"' && byte != '\\'; }

/* The highest bit of each of eight bytes that is no plain ASCII: of the first such byte, and perhaps of some behind it. */
static inline uint64_t not_plain(const char *at) {
    static const uint64_t ONES = 0x0101010101010101;
    uint64_t bytes;
    memcpy(&bytes, at, 8);
    uint64_t quotes = bytes ^ ONES * '"', slashes = bytes ^ ONES * '\\';
    return (bytes | (bytes - ONES * ' ') | (quotes - ONES) | (slashes - ONES)) & ONES * 0x80;
}

/* Behind plain ASCII that is passed eight bytes at a time; all of it, unless the payload ends soon. */
static inline const char *pass_plain(const char *at, const char *end) {
    for (; end - at >= 8; at += 8) {
        uint64_t found = not_plain(at);
        if (found != 0)
#if PY_LITTLE_ENDIAN && defined(__GNUC__)
            return at + (__builtin_ctzll(found) >> 3);
#else
            return at;
#endif
    }
    return at;
}

/* A string without escapes; its bytes beyond ASCII are not looked at. */
static int read_text(Reading *reading, Text *text) {
    if (!take(reading, '"'))
        return 0;
    const char *at = pass_plain(reading->at, reading->end);
    char seen = 0;
    while (is_plain(*at))
        seen |= *at++;
    text->at = reading->at;
    text->length = at - reading->at;
    text->ascii = (seen & 0x80) == 0;
    reading->at = at;
    if (*at != '"')
        return 0;
    reading->at++;
    return 1;
}

/* What follows a backslash; halves of pairs are left to the slow way. */
static int skip_escape(Reading *reading) {
    char which = *reading->at;
    if (which == 0 || strchr("\"\\/bfnrtu", which) == NULL)
        return 0;
    reading->at++;
    if (which != 'u')
        return 1;
    if (*reading->at == 'd' || *reading->at == 'D')
        return 0;
    for (int count = 0; count < 4; count++)
        if (!Py_ISXDIGIT(*reading->at++))
            return 0;
    return 1;
}

static int skip_text(Reading *reading) {
    if (!take(reading, '"'))
        return 0;
    for (;;) {
        reading->at = pass_plain(reading->at, reading->end);
        while (is_plain(*reading->at))
            reading->at++;
        if (*reading->at == '"') {
            reading->at++;
            return 1;
        }
        if (*reading->at++ != '\\' || !skip_escape(reading))
            return 0;
    }
}

static int read_number(Reading *reading, Number *number) {
    skip_space(reading);
    const char *begin = reading->at;
    int digits = 0;
    number->digits = number->decimals = 0;
    for (; is_digit(*reading->at) && digits <= MOST_DIGITS; digits++)
        number->digits = 10 * number->digits + (*reading->at++ - '0');
    if (digits == 0 || (*begin == '0' && digits > 1))
        return 0;
    if (*reading->at == '.') {
        reading->at++;
        for (; is_digit(*reading->at) && digits <= MOST_DIGITS; digits++, number->decimals++)
            number->digits = 10 * number->digits + (*reading->at++ - '0');
        if (number->decimals == 0)
            return 0;
    }
    return digits <= MOST_DIGITS && *reading->at != 'e' && *reading->at != 'E';
}

static int skip_word(Reading *reading, const char *word) {
    size_t length = strlen(word);
    if (strncmp(reading->at, word, length) != 0)
        return 0;
    reading->at += length;
    return 1;
}

/* The value of a field that nobody asks for. */
static int skip_value(Reading *reading) {
    Number number;
    skip_space(reading);
    switch (*reading->at) {
    case '"':
        return skip_text(reading);
    case 't':
        return skip_word(reading, "true");
    case 'f':
        return skip_word(reading, "false");
    case 'n':
        return skip_word(reading, "null");
    case '-':
        reading->at++;
        return is_digit(*reading->at) && read_number(reading, &number);
    default:
        return read_number(reading, &number);
    }
}

static inline int is_here(const char *at, const char *end, const Field *field) {
    return *at == *field->name && end - at > field->length && memcmp(at, field->name, field->length) == 0 &&
           at[field->length] == '"';
}

/* The place of the next name among the fields, most likely the expected one. */
static inline int read_name(Reading *reading, const Field *fields, int count, int expected) {
    Text name;
    skip_space(reading);
    int place = UNKNOWN;
    for (int tried = 0; tried < count && place == UNKNOWN; tried++) {
        int next = expected + tried < count ? expected + tried : expected + tried - count;
        if (*reading->at == '"' && is_here(reading->at + 1, reading->end, &fields[next]))
            place = next;
    }
    if (place != UNKNOWN)
        reading->at += fields[place].length + 2;
    else if (!read_text(reading, &name) || !name.ascii)
        return UNUSUAL;
    return take(reading, ':') ? place : UNUSUAL;
}

static PyObject *string_of(const Text *text) {
    if (text->ascii) {
        PyObject *string = PyUnicode_New(text->length, 127);
        if (string != NULL && text->length > 0)
            memcpy(PyUnicode_1BYTE_DATA(string), text->at, text->length);
        return string;
    }
    PyObject *string = PyUnicode_DecodeUTF8(text->at, text->length, NULL);
    if (string == NULL && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        PyErr_Clear();
    return string;
}

/* As `string_of`, for what is likely to come again: it is the same object then, which has been hashed before. Whoever
   calls this holds the interpreter's lock. */
static PyObject *known_string_of(const Text *text) {
    static PyObject *known[1 << KNOWN_BITS];
    uint64_t first = 0, last = 0;
    if (!text->ascii || text->length == 0 || text->length > LONGEST_KNOWN)
        return string_of(text);
    if (text->length >= 8) {
        memcpy(&first, text->at, 8);
        memcpy(&last, text->at + text->length - 8, 8);
    } else {
        memcpy(&first, text->at, (size_t)text->length);
    }
    /* Two odd numbers that mix well: 2^64 by the golden ratio, and another one. */
    uint64_t mixed = (first * 0x9E3779B97F4A7C15u + last + (uint64_t)text->length) * 0xD6E8FEB86659FD93u;
    PyObject **place = &known[mixed >> (64 - KNOWN_BITS)];
    if (*place != NULL && PyUnicode_GET_LENGTH(*place) == text->length &&
        memcmp(PyUnicode_1BYTE_DATA(*place), text->at, (size_t)text->length) == 0)
        return Py_NewRef(*place);
    PyObject *string = string_of(text);
    if (string != NULL)
        Py_XSETREF(*place, Py_NewRef(string));
    return string;
}

static PyObject *read_string(Reading *reading, Type type) {
    Text text;
    if (!read_text(reading, &text) || (text.length == 0 && type != ANY))
        return NULL;
    if (type == KIND) {
        if (!text.ascii || text.length > LONGEST_KIND || *text.at == '+' || memchr(text.at, 0x7f, text.length))
            return NULL;
    } else if (type == ID && text.length > reading->max_id)
        /* These are bytes: there may be fewer characters. */
        return NULL;
    return type == ID ? string_of(&text) : known_string_of(&text);
}

static double value_of(const Number *number) {
    /* Both are exact up to here, so the quotient is the nearest to the decimal number. */
    static const double TENS[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    return number->decimals == 0 ? (double)number->digits : (double)number->digits / TENS[number->decimals];
}

static PyObject *read_measure(Reading *reading, Type type) {
    Number number;
    if (!read_number(reading, &number) || (FLT_EVAL_METHOD != 0 && number.decimals > 0))
        return NULL;
    double value = value_of(&number);
    return type == LATENCY && value > LONGEST_LATENCY_MS ? NULL : PyFloat_FromDouble(value);
}

/* So many digits as a number, -1 if there is anything else among them. */
static inline int number_at(const char *at, int count) {
    int number = 0;
    for (; count > 0; count--, at++) {
        if (!is_digit(*at))
            return -1;
        number = 10 * number + (*at - '0');
    }
    return number;
}

/* The milliseconds of 2026-01-31T12:00:00Z, or with three or more decimals; -1 if it is not written so. */
static long long instant_of(const Text *text) {
    static const int DAYS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const char *at = text->at;
    if (text->length < 20 || text->length > 40 || at[text->length - 1] != 'Z')
        return -1;
    if (at[4] != '-' || at[7] != '-' || at[10] != 'T' || at[13] != ':' || at[16] != ':')
        return -1;
    int millisecond = 0;
    if (text->length > 20) {
        if (at[19] != '.' || text->length < 24 || (millisecond = number_at(at + 20, 3)) < 0)
            return -1;
        for (Py_ssize_t place = 23; place < text->length - 1; place++)
            if (!is_digit(at[place]))
                return -1;
    }
    int year = number_at(at, 4), month = number_at(at + 5, 2), day = number_at(at + 8, 2);
    int hour = number_at(at + 11, 2), minute = number_at(at + 14, 2), second = number_at(at + 17, 2);
    if (year < 1970 || month < 1 || month > 12 || day < 1 || hour < 0 || hour > 23)
        return -1;
    if (minute < 0 || minute > 59 || second < 0 || second > 59)
        return -1;
    int leaps = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > DAYS[month - 1] + (month == 2 && leaps))
        return -1;
    /* Years are taken to begin in March, so that a leap day is the last one. */
    if (month < 3) {
        year--;
        month += 12;
    }
    long long days = 365LL * year + year / 4 - year / 100 + year / 400 + (153 * month - 457) / 5 + day - 719469;
    return ((days * 24 + hour) * 60 + minute) * 60000 + second * 1000 + millisecond;
}

static PyObject *read_time(Reading *reading) {
    Text text;
    Number number;
    long long at_ms;
    skip_space(reading);
    if (*reading->at == '"')
        at_ms = read_text(reading, &text) ? instant_of(&text) : -1;
    else
        at_ms = read_number(reading, &number) && number.decimals == 0 ? number.digits : -1;
    return at_ms < 0 || at_ms > LATEST_MS ? NULL : PyLong_FromLongLong(at_ms);
}

/* One place of a list: its item, if it is the one that stands there by its position. */
static int read_item(Reading *reading, Py_ssize_t position, Text *item) {
    int seen = 0;
    Number number;
    if (!take(reading, '{'))
        return 0;
    do {
        int place = read_name(reading, ITEM, 2, seen & 1);
        if (place >= 0 && seen & 1 << place)
            return 0;
        switch (place) {
        case 0:
            if (!read_text(reading, item) || item->length == 0 || item->length > reading->max_id)
                return 0;
            break;
        case 1:
            if (!read_number(reading, &number) || number.decimals > 0 || number.digits != position)
                return 0;
            break;
        case UNKNOWN:
            if (!skip_value(reading))
                return 0;
            continue;
        default:
            return 0;
        }
        seen |= 1 << place;
    } while (take(reading, ','));
    return take(reading, '}') && seen == 3;
}

/* Ids of one kind often differ in nothing but their ends. */
static inline int are_same(const Text *one, const Text *other) {
    Py_ssize_t length = one->length;
    return other->length == length && one->at[length - 1] == other->at[length - 1] &&
           memcmp(one->at, other->at, (size_t)length) == 0;
}

static PyObject *read_items(Reading *reading) {
    Text items[MOST_ITEMS];
    Py_ssize_t count = 0;
    if (!take(reading, '['))
        return NULL;
    if (!take(reading, ']')) {
        do {
            if (count == MOST_ITEMS || count == reading->max_items || !read_item(reading, count + 1, &items[count]))
                return NULL;
            for (Py_ssize_t before = 0; before < count; before++)
                if (are_same(&items[before], &items[count]))
                    return NULL;
            count++;
        } while (take(reading, ','));
        if (!take(reading, ']'))
            return NULL;
    }
    PyObject *found = PyTuple_New(count);
    for (Py_ssize_t place = 0; found != NULL && place < count; place++) {
        PyObject *item = known_string_of(&items[place]);
        if (item == NULL)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, place, item);
    }
    return found;
}

static PyObject *read_field(Reading *reading, const Field *field) {
    skip_space(reading);
    if (field->absent == NONE && *reading->at == 'n')
        return skip_word(reading, "null") ? Py_NewRef(Py_None) : NULL;
    switch (field->type) {
    case TIME:
        return read_time(reading);
    case ITEMS:
        return read_items(reading);
    case LATENCY:
    case SCORE:
        return read_measure(reading, field->type);
    default:
        return read_string(reading, field->type);
    }
}

static int read_object(Reading *reading, const Field *fields, int count, PyObject *found) {
    int expected = 0;
    if (!take(reading, '{'))
        return 0;
    do {
        int place = read_name(reading, fields, count, expected);
        if (place == UNUSUAL)
            return 0;
        if (place == UNKNOWN) {
            if (!skip_value(reading))
                return 0;
            continue;
        }
        if (PyTuple_GET_ITEM(found, place) != NULL)
            return 0;
        PyObject *value = read_field(reading, &fields[place]);
        if (value == NULL)
            return 0;
        PyTuple_SET_ITEM(found, place, value);
        expected = place + 1 < count ? place + 1 : 0;
    } while (take(reading, ','));
    if (!take(reading, '}'))
        return 0;
    for (int place = 0; place < count; place++)
        if (PyTuple_GET_ITEM(found, place) == NULL) {
            if (fields[place].absent == REQUIRED)
                return 0;
            PyObject *value = fields[place].absent == NONE ? Py_NewRef(Py_None) : PyFloat_FromDouble(1.0);
            if (value == NULL)
                return 0;
            PyTuple_SET_ITEM(found, place, value);
        }
    return 1;
}

/* The fields of an event, or None; the arguments are bytes, where in them its payload begins and ends, and how long ids,
   and perhaps lists, may be. */
static PyObject *scan(PyObject *const *args, Py_ssize_t nargs, Py_ssize_t expected, const Field *fields, int count) {
    if (nargs != expected || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "expected bytes, two places in them, and %zd limits", expected - 3);
    Py_ssize_t numbers[4] = {0};
    for (Py_ssize_t place = 1; place < nargs; place++) {
        numbers[place - 1] = PyLong_AsSsize_t(args[place]);
        if (numbers[place - 1] == -1 && PyErr_Occurred())
            return NULL;
    }
    if (numbers[0] < 0 || numbers[1] < numbers[0] || PyBytes_GET_SIZE(args[0]) < numbers[1])
        return PyErr_Format(PyExc_ValueError, "%zd to %zd, expected places in %zd bytes", numbers[0], numbers[1],
                            PyBytes_GET_SIZE(args[0]));
    const char *bytes = PyBytes_AS_STRING(args[0]);
    Reading reading = {bytes + numbers[0], bytes + numbers[1], numbers[2], numbers[3]};
    PyObject *found = PyTuple_New(count);
    if (found == NULL)
        return NULL;
    if (read_object(&reading, fields, count, found)) {
        /* What follows is somebody else's, be it space. */
        while (reading.at < reading.end && is_space(*reading.at))
            reading.at++;
        if (reading.at == reading.end)
            return found;
    }
    Py_DECREF(found);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *scan_response(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    return scan(args, nargs, 5, RESPONSE, sizeof(RESPONSE) / sizeof(Field));
}

static PyObject *scan_feedback(PyObject *module, PyObject *const *args, Py_ssize_t nargs) {
    (void)module;
    return scan(args, nargs, 4, FEEDBACK, sizeof(FEEDBACK) / sizeof(Field));
}

static PyMethodDef METHODS[] = {
    {"scan_response", (PyCFunction)(void (*)(void))scan_response, METH_FASTCALL, NULL},
    {"scan_feedback", (PyCFunction)(void (*)(void))scan_feedback, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {
#if PY_VERSION_HEX >= 0x030C0000
    /* They would share the strings that were seen lately. */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, .m_name = "scanning", .m_methods = METHODS, .m_slots = SLOTS};

PyMODINIT_FUNC PyInit_scanning(void) { return PyModuleDef_Init(&MODULE); }
