/* What the compiled kernel needs and Cython cannot say: CRC-32C in hardware, big-endian loads, and a
 * tuple subclass made without a call; a keyed hash, and memory for a table that is probed by it. Every
 * function reads only [data, data + length).
 *
 * CRC-32C: SSE4.2 or ARMv8 instructions where the processor has them (asked once, at the first call),
 * else eight tables. Long buffers run three independent streams, since one crc32 instruction has a
 * latency of three cycles and a throughput of one; the streams are joined by a carry-less shift table.
 * Where 64 bytes can be multiplied at a time, a long buffer is folded into its last 256 bytes instead.
 */
#ifndef STRATALOG_NATIVE_H
#define STRATALOG_NATIVE_H

#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if !defined(_MSC_VER)
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

#define STRATALOG_POLY 0x82f63b78u
#define STRATALOG_LANE 1024 /* bytes per stream in one interleaved step */
#define STRATALOG_SHORT 64  /* the same for what is left of a medium buffer */

static uint32_t stratalog_crc_table[8][256];
static uint32_t stratalog_lane_shift[4][256];
static uint32_t stratalog_short_shift[4][256];
static int stratalog_crc_mode = 0; /* 0 not yet asked, 1 tables, 2 hardware, 3 hardware that folds */

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

#if defined(STRATALOG_HW_CRC) && defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define STRATALOG_FOLD_CRC 1
#define STRATALOG_FOLD 256 /* bytes in one step: four registers */
#include <immintrin.h>
static uint64_t stratalog_fold_by[2]; /* what moves the first and the second half of 16 bytes */

static int stratalog_can_fold(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

/* x**power modulo the polynomial, as a factor for a half. Bit 0 of a register is the highest power, and the
 * product of two halves has one power less than its register says: the caller asks for one less. */
static uint64_t stratalog_power(int power) {
    uint32_t v = 0x80000000u;
    while (power-- > 0) v = (v & 1) ? (v >> 1) ^ STRATALOG_POLY : v >> 1;
    return (uint64_t)v << 32;
}

static void stratalog_fill_fold(void) {
    stratalog_fold_by[0] = stratalog_power(8 * STRATALOG_FOLD + 64 - 1);
    stratalog_fold_by[1] = stratalog_power(8 * STRATALOG_FOLD - 1);
}

/* Every 16 bytes are multiplied by what 256 bytes behind them do to a CRC, and added to those that lie
 * there. The 256 bytes that are left at the end have the remainder of the whole. */
__attribute__((target("avx512f,vpclmulqdq,sse4.2")))
static uint32_t stratalog_crc_fold(uint32_t start, const unsigned char *p, size_t n) {
    const __m512i by = _mm512_set_epi64(
        (long long)stratalog_fold_by[1], (long long)stratalog_fold_by[0],
        (long long)stratalog_fold_by[1], (long long)stratalog_fold_by[0],
        (long long)stratalog_fold_by[1], (long long)stratalog_fold_by[0],
        (long long)stratalog_fold_by[1], (long long)stratalog_fold_by[0]);
    __m512i sum[STRATALOG_FOLD / 64];
    unsigned char left[STRATALOG_FOLD];
    int i;
    for (i = 0; i < STRATALOG_FOLD / 64; i++) sum[i] = _mm512_loadu_si512(p + 64 * i);
    sum[0] = _mm512_xor_si512(sum[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~start)));
    p += STRATALOG_FOLD;
    n -= STRATALOG_FOLD;
    while (n >= STRATALOG_FOLD) {
        for (i = 0; i < STRATALOG_FOLD / 64; i++) {
            __m512i low = _mm512_clmulepi64_epi128(sum[i], by, 0x00);
            __m512i high = _mm512_clmulepi64_epi128(sum[i], by, 0x11);
            sum[i] = _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(p + 64 * i), 0x96);
        }
        p += STRATALOG_FOLD;
        n -= STRATALOG_FOLD;
    }
    for (i = 0; i < STRATALOG_FOLD / 64; i++) _mm512_storeu_si512(left + 64 * i, sum[i]);
    return stratalog_crc_hw(stratalog_crc_hw(~(uint32_t)0, left, STRATALOG_FOLD), p, n);
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
#ifdef STRATALOG_FOLD_CRC
    if (stratalog_crc_mode == 2 && stratalog_can_fold()) {
        stratalog_fill_fold();
        stratalog_crc_mode = 3;
    }
#endif
}

static inline uint32_t stratalog_crc(uint32_t crc, const unsigned char *p, size_t n) {
#ifdef STRATALOG_FOLD_CRC
    if (n >= 4 * STRATALOG_FOLD && stratalog_crc_mode == 3) return stratalog_crc_fold(crc, p, n);
#endif
#ifdef STRATALOG_HW_CRC
    if (stratalog_crc_mode >= 2) return stratalog_crc_hw(crc, p, n);
#endif
    return stratalog_crc_plain(crc, p, n);
}

/* 96 bits of hash of a key: the values of one polynomial, its coefficients the key's length and words of
 * seven bytes, at two secret points modulo 2**61 - 1. Two different keys of at most w words agree for at
 * most one in 2**92 / w**2 of the pairs of points, whoever chose the keys; so nobody who does not know the
 * points can make keys that collide. The first value is mixed (one to one) for use as a slot.
 */
#define STRATALOG_P61 0x1fffffffffffffffULL
#define STRATALOG_LOW56 0x00ffffffffffffffULL

static inline uint64_t stratalog_mul128(uint64_t a, uint64_t b, uint64_t *high) {
#if defined(__SIZEOF_INT128__)
    unsigned __int128 m = (unsigned __int128)a * b;
    *high = (uint64_t)(m >> 64);
    return (uint64_t)m;
#elif defined(_MSC_VER) && defined(_M_X64)
    return _umul128(a, b, high);
#else
    uint64_t al = (uint32_t)a, ah = a >> 32, bl = (uint32_t)b, bh = b >> 32;
    uint64_t low = al * bl, one = ah * bl, two = al * bh;
    uint64_t middle = (low >> 32) + (uint32_t)one + (uint32_t)two;
    *high = ah * bh + (one >> 32) + (two >> 32) + (middle >> 32);
    return (middle << 32) | (uint32_t)low;
#endif
}

/* h * point + word modulo 2**61 - 1, not fully reduced: for h up to 2**61 + 7 the result is no larger. */
static inline uint64_t stratalog_step61(uint64_t h, uint64_t point, uint64_t word) {
    uint64_t high, low = stratalog_mul128(h, point, &high);
    h = (low & STRATALOG_P61) + ((high << 3) | (low >> 61)) + word;
    return (h & STRATALOG_P61) + (h >> 61);
}

static inline uint64_t stratalog_le64(const unsigned char *p) {
    uint64_t v;
    memcpy(&v, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
}

static inline uint64_t stratalog_le32(const unsigned char *p) {
    return (uint64_t)p[0] | ((uint64_t)p[1] << 8) | ((uint64_t)p[2] << 16) | ((uint64_t)p[3] << 24);
}

static inline void stratalog_key_hash(const unsigned char *p, size_t n, uint64_t point_a, uint64_t point_b,
                                      unsigned long long *hash_a, unsigned int *hash_b) {
    uint64_t a = n + 1, b = n + 1, w;
    size_t left = n;
    while (left >= 8) {
        w = stratalog_le64(p + (n - left)) & STRATALOG_LOW56;
        a = stratalog_step61(a, point_a, w);
        b = stratalog_step61(b, point_b, w);
        left -= 7;
    }
    if (left) {
        if (n >= 8) {
            w = stratalog_le64(p + n - 8) >> (8 * (8 - left));
        } else if (n >= 4) {
            w = stratalog_le32(p) | (stratalog_le32(p + n - 4) << (8 * (n - 4)));
        } else {
            w = (uint64_t)p[0] | ((uint64_t)p[n >> 1] << (8 * (n >> 1))) | ((uint64_t)p[n - 1] << (8 * (n - 1)));
        }
        a = stratalog_step61(a, point_a, w);
        b = stratalog_step61(b, point_b, w);
    }
    a = stratalog_step61(a, point_a, 0);
    b = stratalog_step61(b, point_b, 0);
    if (a >= STRATALOG_P61) a -= STRATALOG_P61;
    if (b >= STRATALOG_P61) b -= STRATALOG_P61;
    a ^= a >> 33;
    a *= 0xff51afd7ed558ccdULL;
    a ^= a >> 33;
    a *= 0xc4ceb9fe1a85ec53ULL;
    *hash_a = a ^ (a >> 33);
    *hash_b = (unsigned int)b;
}

/* Where in a table of `slots` a hash belongs: any number of slots, no division. */
static inline uint64_t stratalog_slot(uint64_t hash, uint64_t slots) {
    uint64_t high;
    stratalog_mul128(hash, slots, &high);
    return high;
}

/* Copies n bytes, and may copy more: up to `room`, which both sides must have. A call of memcpy costs more
 * than a short copy does. */
static inline void stratalog_copy_short(unsigned char *dst, const unsigned char *src, size_t n, size_t room) {
    size_t i;
    if (n <= 16 && room >= 16) {
        memcpy(dst, src, 16);
    } else if (n <= 128 && room >= ((n + 31) & ~(size_t)31)) {
        for (i = 0; i < n; i += 32) {
            memcpy(dst + i, src + i, 32);
        }
    } else {
        memcpy(dst, src, n);
    }
}

static inline void stratalog_prefetch(const void *p) {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(p, 1, 3);
#else
    (void)p;
#endif
}

/* Zeros that cost nothing until they are touched. A table is probed all over: large pages spare it most of
 * the address translation. */
static inline unsigned long long *stratalog_table_new(size_t words) {
    unsigned long long *made = (unsigned long long *)calloc(words, sizeof(unsigned long long));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    if (made != NULL && words * sizeof(unsigned long long) >= ((size_t)4 << 20)) {
        uintptr_t from = ((uintptr_t)made + 4095) & ~(uintptr_t)4095;
        uintptr_t to = (uintptr_t)(made + words) & ~(uintptr_t)4095;
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE); /* a wish; refusal changes nothing */
    }
#endif
    return made;
}

static inline void stratalog_table_free(unsigned long long *table) { free(table); }

/* One positional write; how many bytes it wrote, or less than 0. */
static inline long long stratalog_pwrite(int fd, const unsigned char *data, size_t length, long long position) {
#if defined(_MSC_VER)
    return -1;
#else
    return pwrite(fd, data, length, position);
#endif
}

/* What a socket that does not block has, or takes, now: how many bytes, or the error's number below 0. */
static inline long long stratalog_receive(int fd, unsigned char *data, size_t length) {
#if defined(__linux__)
    ssize_t n = recv(fd, data, length, MSG_DONTWAIT);
    return n < 0 ? -(long long)errno : n;
#else
    (void)fd, (void)data, (void)length;
    return -1;
#endif
}

static inline long long stratalog_send(int fd, const unsigned char *data, size_t length) {
#if defined(__linux__)
    ssize_t n = send(fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n < 0 ? -(long long)errno : n;
#else
    (void)fd, (void)data, (void)length;
    return -1;
#endif
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
