/* What the compiled kernel needs and Cython cannot say: CRC-32C in hardware, big-endian loads, and a
 * tuple subclass made without a call. Every function reads only [data, data + length).
 *
 * CRC-32C: SSE4.2 or ARMv8 instructions where the processor has them (asked once, at the first call),
 * else eight tables. Long buffers run three independent streams, since one crc32 instruction has a
 * latency of three cycles and a throughput of one; the streams are joined by a carry-less shift table.
 */
#ifndef STRATALOG_NATIVE_H
#define STRATALOG_NATIVE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>

#define STRATALOG_POLY 0x82f63b78u
#define STRATALOG_LANE 1024 /* bytes per stream in one interleaved step */
#define STRATALOG_SHORT 64  /* the same for what is left of a medium buffer */

static uint32_t stratalog_crc_table[8][256];
static uint32_t stratalog_lane_shift[4][256];
static uint32_t stratalog_short_shift[4][256];
static int stratalog_crc_mode = 0; /* 0 not yet asked, 1 tables, 2 hardware */

static inline uint64_t stratalog_be64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return v;
#elif defined(_MSC_VER)
    return _byteswap_uint64(v);
#else
    return __builtin_bswap64(v);
#endif
}

static inline uint32_t stratalog_be32(const unsigned char *p) {
    return ((uint32_t)p[0] << 24) | ((uint32_t)p[1] << 16) | ((uint32_t)p[2] << 8) | (uint32_t)p[3];
}

static inline void stratalog_put64(unsigned char *p, uint64_t v) {
    int i;
    for (i = 7; i >= 0; i--) {
        p[i] = (unsigned char)v;
        v >>= 8;
    }
}

static inline void stratalog_put32(unsigned char *p, uint32_t v) {
    p[0] = (unsigned char)(v >> 24);
    p[1] = (unsigned char)(v >> 16);
    p[2] = (unsigned char)(v >> 8);
    p[3] = (unsigned char)v;
}

static uint32_t stratalog_crc_plain(uint32_t crc, const unsigned char *p, size_t n) {
    crc = ~crc;
    while (n >= 8) {
        uint32_t lo = crc ^ ((uint32_t)p[0] | ((uint32_t)p[1] << 8) | ((uint32_t)p[2] << 16) | ((uint32_t)p[3] << 24));
        crc = stratalog_crc_table[7][lo & 0xff] ^ stratalog_crc_table[6][(lo >> 8) & 0xff] ^
              stratalog_crc_table[5][(lo >> 16) & 0xff] ^ stratalog_crc_table[4][lo >> 24] ^
              stratalog_crc_table[3][p[4]] ^ stratalog_crc_table[2][p[5]] ^
              stratalog_crc_table[1][p[6]] ^ stratalog_crc_table[0][p[7]];
        p += 8;
        n -= 8;
    }
    while (n--) {
        crc = stratalog_crc_table[0][(crc ^ *p++) & 0xff] ^ (crc >> 8);
    }
    return ~crc;
}

#if (defined(__x86_64__) || defined(__i386__)) && (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define STRATALOG_HW_CRC 1
#define STRATALOG_HW_TARGET __attribute__((target("sse4.2")))
#include <nmmintrin.h>
#define STRATALOG_CRC8(c, b) _mm_crc32_u8((uint32_t)(c), (b))
#define STRATALOG_CRC64(c, w) _mm_crc32_u64((c), (w))
static int stratalog_has_hw(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__)) && (defined(__linux__) || defined(__APPLE__))
#define STRATALOG_HW_CRC 1
#if defined(__APPLE__)
#define STRATALOG_HW_TARGET
#elif defined(__clang__)
#define STRATALOG_HW_TARGET __attribute__((target("crc")))
#else
#define STRATALOG_HW_TARGET __attribute__((target("+crc")))
#endif
#include <arm_acle.h>
#define STRATALOG_CRC8(c, b) __crc32cb((uint32_t)(c), (b))
#define STRATALOG_CRC64(c, w) __crc32cd((uint32_t)(c), (w))
#if defined(__linux__)
#include <sys/auxv.h>
static int stratalog_has_hw(void) { return (getauxval(AT_HWCAP) & (1 << 7)) != 0; }
#else
static int stratalog_has_hw(void) { return 1; }
#endif
#endif

#ifdef STRATALOG_HW_CRC
static inline uint32_t stratalog_shift(const uint32_t table[4][256], uint32_t crc) {
    return table[0][crc & 0xff] ^ table[1][(crc >> 8) & 0xff] ^ table[2][(crc >> 16) & 0xff] ^ table[3][crc >> 24];
}

static inline uint64_t stratalog_word(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

STRATALOG_HW_TARGET
static uint32_t stratalog_crc_hw(uint32_t start, const unsigned char *p, size_t n) {
    uint64_t a = (uint32_t)~start, b, c;
    size_t i;
    while (n >= 3 * STRATALOG_LANE) {
        b = c = 0;
        for (i = 0; i < STRATALOG_LANE; i += 8) {
            a = STRATALOG_CRC64(a, stratalog_word(p + i));
            b = STRATALOG_CRC64(b, stratalog_word(p + STRATALOG_LANE + i));
            c = STRATALOG_CRC64(c, stratalog_word(p + 2 * STRATALOG_LANE + i));
        }
        a = stratalog_shift(stratalog_lane_shift, (uint32_t)a) ^ b;
        a = stratalog_shift(stratalog_lane_shift, (uint32_t)a) ^ c;
        p += 3 * STRATALOG_LANE;
        n -= 3 * STRATALOG_LANE;
    }
    while (n >= 3 * STRATALOG_SHORT) {
        b = c = 0;
        for (i = 0; i < STRATALOG_SHORT; i += 8) {
            a = STRATALOG_CRC64(a, stratalog_word(p + i));
            b = STRATALOG_CRC64(b, stratalog_word(p + STRATALOG_SHORT + i));
            c = STRATALOG_CRC64(c, stratalog_word(p + 2 * STRATALOG_SHORT + i));
        }
        a = stratalog_shift(stratalog_short_shift, (uint32_t)a) ^ b;
        a = stratalog_shift(stratalog_short_shift, (uint32_t)a) ^ c;
        p += 3 * STRATALOG_SHORT;
        n -= 3 * STRATALOG_SHORT;
    }
    while (n >= 8) {
        a = STRATALOG_CRC64(a, stratalog_word(p));
        p += 8;
        n -= 8;
    }
    while (n--) {
        a = STRATALOG_CRC8(a, *p++);
    }
    return ~(uint32_t)a;
}
#endif

/* The register after `zeros` zero bytes is linear in the register before: four tables of 256. */
static void stratalog_fill_shift(uint32_t table[4][256], size_t zeros) {
    uint32_t bit[32];
    int i, k;
    size_t z;
    for (i = 0; i < 32; i++) {
        uint32_t v = 1u << i;
        for (z = 0; z < zeros; z++) {
            v = stratalog_crc_table[0][v & 0xff] ^ (v >> 8);
        }
        bit[i] = v;
    }
    for (k = 0; k < 4; k++) {
        for (i = 0; i < 256; i++) {
            uint32_t v = 0;
            int j;
            for (j = 0; j < 8; j++) {
                if (i & (1 << j)) v ^= bit[8 * k + j];
            }
            table[k][i] = v;
        }
    }
}

/* Called once when a kernel module is imported, with the import lock held. */
static void stratalog_native_init(void) {
    uint32_t n, k, c;
    for (n = 0; n < 256; n++) {
        c = n;
        for (k = 0; k < 8; k++) c = (c & 1) ? (c >> 1) ^ STRATALOG_POLY : c >> 1;
        stratalog_crc_table[0][n] = c;
    }
    for (n = 0; n < 256; n++) {
        c = stratalog_crc_table[0][n];
        for (k = 1; k < 8; k++) {
            c = stratalog_crc_table[0][c & 0xff] ^ (c >> 8);
            stratalog_crc_table[k][n] = c;
        }
    }
    stratalog_fill_shift(stratalog_lane_shift, STRATALOG_LANE);
    stratalog_fill_shift(stratalog_short_shift, STRATALOG_SHORT);
    stratalog_crc_mode = 1;
#ifdef STRATALOG_HW_CRC
    if (stratalog_has_hw()) stratalog_crc_mode = 2;
#endif
}

static inline uint32_t stratalog_crc(uint32_t crc, const unsigned char *p, size_t n) {
#ifdef STRATALOG_HW_CRC
    if (stratalog_crc_mode == 2) return stratalog_crc_hw(crc, p, n);
#endif
    return stratalog_crc_plain(crc, p, n);
}

/* A new instance of a tuple subclass, its items still empty; the caller fills every one of them.
 * Not tracked by the collector: the kernel puts only bytes, text, numbers and tuples of those inside. */
static inline PyObject *stratalog_new_tuple(PyObject *cls, Py_ssize_t size) {
    PyTypeObject *type = (PyTypeObject *)cls;
    PyObject *made;
    if (!PyType_Check(cls) || !PyType_IsSubtype(type, &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "the record class must be a tuple");
        return NULL;
    }
    made = type->tp_alloc(type, size);
    if (made != NULL) PyObject_GC_UnTrack(made);
    return made;
}

static inline void stratalog_set_item(PyObject *tuple, Py_ssize_t index, PyObject *item) {
    Py_INCREF(item);
    PyTuple_SET_ITEM(tuple, index, item);
}

#endif
