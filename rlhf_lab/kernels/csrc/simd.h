/* What the kernels share. They do what lies between the matrix products of a decoder layer, and behind a vocabulary head, each in one
 * pass over its numbers; and where a processor multiplies bfloat16, whole layers (layer.c).
 *
 * Tensors are of float32, or of bfloat16 where BFLOAT16 is defined: a `number` is one of theirs. What is computed with them, and
 * whatever else says float, is float32. They lie one row behind the other unless a distance is given, which counts numbers as all
 * sizes do.
 * Every row, and every head of a text, is computed by one thread in one order: results do not depend on how many threads there are.
 * Long sums have WIDE parts whatever the compiler makes of them, so their rounding does not grow with the length as one part's would.
 * calls.py and tiled.py have the shapes of what each function takes.
 */

#ifndef COMMON_H
#define COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define WIDE 16 /* numbers computed at once; rows of working memory are as long as a multiple of it */
#define TILE 8  /* rows of a product computed at once */

typedef int64_t size;
typedef float wide __attribute__((vector_size(4 * WIDE), aligned(4), may_alias));
typedef float half __attribute__((vector_size(2 * WIDE)));
typedef float quarter __attribute__((vector_size(WIDE)));

#ifdef BFLOAT16

/* The upper half of a float32. */
typedef uint16_t number;
typedef uint16_t packed __attribute__((vector_size(2 * WIDE), aligned(2), may_alias));
typedef uint32_t lanes __attribute__((vector_size(4 * WIDE)));

static inline float widened(number x) {
    union {
        uint32_t bits;
        float one;
    } of = {.bits = (uint32_t)x << 16};
    return of.one;
}

/* The nearest one, of two the even one. NaN stays NaN, for those that processors make and those of bfloat16 end in zeros. */
static inline number narrowed(float x) {
    union {
        float one;
        uint32_t bits;
    } of = {x};
    return (number)((of.bits + 0x7fff + (of.bits >> 16 & 1)) >> 16);
}

static inline wide wide_at(const number *p) { return (wide)(__builtin_convertvector(*(const packed *)p, lanes) << 16); }

static inline void put_wide(number *p, wide x) {
    lanes bits = (lanes)x;
    *(packed *)p = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, packed);
}

#else

typedef float number;

static inline float widened(number x) { return x; }
static inline number narrowed(float x) { return x; }
static inline wide wide_at(const number *p) { return *(const wide *)p; }
static inline void put_wide(number *p, wide x) { *(wide *)p = x; }

#endif

#define IS_HALF (sizeof(number) < sizeof(float))

static inline size rounded(size count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* Does things `from` to `to` of a job; threads are counted from 0 on. */
typedef void (*work)(const void *job, size from, size to, size thread);

/* Do `count` things of `each` numbers with at most so many threads. */
void share(work run, const void *job, size count, size each, size threads);

/* rows.c */
void norm(const number *x, const number *weight, number *out, float *inverse, size rows, size width, float eps, size threads);
void norm_back(const number *slope, const number *x, const float *inverse, const number *weight, const number *around, number *out,
               number *again, size rows, size width, size threads);
void swiglu(const number *gate, const number *up, number *out, size count, size threads);
void swiglu_back(const number *slope, const number *gate, const number *up, number *d_gate, number *d_up, number *out, size count,
                 size threads);

/* attention.c */
size attend_room(size length, size of_head);
void attend(const number *read, const number *cos, const number *sin, number *mixed, float *room, size batch, size length,
            size first, size heads, size groups, size of_head, size turns, float sharp, size threads);
void attend_back(const number *slope, const number *read, const number *cos, const number *sin, number *d_read, float *room,
                 size batch, size length, size first, size heads, size groups, size of_head, size turns, float sharp,
                 size threads);

/* e^x within 2 units in the last place: 2^n · e^r, |r| <= ln 2 / 2, and e^r by its series. Below -87.3 it is 0; NaN stays NaN. */
static inline float exponential(float x) {
    float held = x < -87.3f ? -87.3f : x;
    held = held > 88.0f ? 88.0f : held;
    float n = rintf(held * 1.44269504f), r = fmaf(n, -0.693359375f, held);
    r = fmaf(n, 2.12194440e-4f, r);
    float sum = 1.0f / 5040;
    sum = fmaf(sum, r, 1.0f / 720);
    sum = fmaf(sum, r, 1.0f / 120);
    sum = fmaf(sum, r, 1.0f / 24);
    sum = fmaf(sum, r, 1.0f / 6);
    sum = fmaf(sum, r, 0.5f);
    sum = fmaf(sum, r, 1.0f);
    sum = fmaf(sum, r, 1.0f);
    union {
        uint32_t bits;
        float number;
    } power = {.bits = (uint32_t)((int32_t)n + 127) << 23};
    return x < -87.3f ? 0.0f : sum * power.number;
}

/* The sum of all its numbers, by halves. */
static inline float total(wide x) {
    union {
        wide all;
        half halves[2];
    } of = {x};
    union {
        half all;
        quarter quarters[2];
    } next = {of.halves[0] + of.halves[1]};
    quarter last = next.quarters[0] + next.quarters[1];
    return (last[0] + last[2]) + (last[1] + last[3]);
}

/* Products of small matrices, `count` rows at a time: to (count, WIDE) = of · row, or added to what is there. */
#define PRODUCT(count)                                                                                                        \
    {                                                                                                                         \
        wide sum[count] = {0};                                                                                                \
        for (size t = 0; add && t < count; t++) sum[t] = *(const wide *)(to + t * apart);                                     \
        for (size k = 0; k < depth; k++)                                                                                      \
            for (size t = 0; t < count; t++) sum[t] += of[t * down + k * along] * *(const wide *)(row + k * step);            \
        for (size t = 0; t < count; t++) *(wide *)(to + t * apart) = sum[t];                                                  \
    }

/* out (rows, width) = a · b, or added to it: a's number (i, k) lies at a[i * down + k * along]; rows of b are `step` apart, of out
 * `apart`; width is a multiple of WIDE. */
static inline void product(float *restrict out, size apart, const float *restrict a, size down, size along, const float *restrict b,
                    size step, size rows, size depth, size width, int add) {
    for (size column = 0; column < width; column += WIDE)
        for (size i = 0; i < rows;) {
            float *to = out + i * apart + column;
            const float *of = a + i * down, *row = b + column;
            if (i + TILE <= rows) {
                PRODUCT(TILE)
                i += TILE;
            } else {
                PRODUCT(1)
                i++;
            }
        }
}

#endif
