/* Types and helpers that the kernels share.
 *
 * The kernels compute the element-wise parts of a decoder layer (normalisation, SwiGLU, attention) and of the vocabulary head,
 * each in one pass over its data. Where the processor multiplies bfloat16 they compute whole layers (llama_layer.c).
 *
 * Tensors are float32, or bfloat16 if BFLOAT16 is defined; `scalar` is the element type. Arithmetic, and everything declared
 * float, is float32. Rows are contiguous unless a stride is given. Sizes and strides count elements.
 * One thread computes each row, and each head of a sequence, in a fixed order, so results do not depend on the number of threads.
 * Long sums use VEC_WIDTH partial sums on every target, so that the rounding error grows slowly with the length.
 * ops.py and amx_layer.py document the shapes of each function's arguments.
 */

#ifndef SIMD_H
#define SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define VEC_WIDTH 16 /* elements per vector; rows of working memory are padded to a multiple of it */
#define ROW_BLOCK 8  /* rows of a matrix product computed together */

typedef int64_t index_t;
typedef float vec __attribute__((vector_size(4 * VEC_WIDTH), aligned(4), may_alias));
typedef float half_vec __attribute__((vector_size(2 * VEC_WIDTH)));
typedef float quarter_vec __attribute__((vector_size(VEC_WIDTH)));

#ifdef BFLOAT16

/* bfloat16: the upper 16 bits of a float32. */
typedef uint16_t scalar;
typedef uint16_t packed_bf16 __attribute__((vector_size(2 * VEC_WIDTH), aligned(2), may_alias));
typedef uint32_t lanes __attribute__((vector_size(4 * VEC_WIDTH)));

static inline float to_float(scalar x) {
    union {
        uint32_t bits;
        float as_float;
    } value = {.bits = (uint32_t)x << 16};
    return value.as_float;
}

/* Round to nearest, ties to even. NaN stays NaN: NaNs made by the processor or widened from bfloat16 have zero lower bits. */
static inline scalar from_float(float x) {
    union {
        float as_float;
        uint32_t bits;
    } value = {x};
    return (scalar)((value.bits + 0x7fff + (value.bits >> 16 & 1)) >> 16);
}

static inline vec load_vec(const scalar *p) { return (vec)(__builtin_convertvector(*(const packed_bf16 *)p, lanes) << 16); }

static inline void store_vec(scalar *p, vec x) {
    lanes bits = (lanes)x;
    *(packed_bf16 *)p = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, packed_bf16);
}

#else

typedef float scalar;

static inline float to_float(scalar x) { return x; }
static inline scalar from_float(float x) { return x; }
static inline vec load_vec(const scalar *p) { return *(const vec *)p; }
static inline void store_vec(scalar *p, vec x) { *(vec *)p = x; }

#endif

#define IS_BFLOAT16 (sizeof(scalar) < sizeof(float))

static inline index_t round_up(index_t count) { return (count + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH; }

/* Processes items `begin` to `end` - 1 of a job. Threads are numbered from 0. */
typedef void (*task_fn)(const void *job, index_t begin, index_t end, index_t thread);

/* Run a task over `count` items of about `cost` elements each, on at most `threads` threads. */
void parallel_for(task_fn task, const void *job, index_t count, index_t cost, index_t threads);

/* elementwise.c */
void rms_norm(const scalar *x, const scalar *weight, scalar *out, float *inverse_rms, index_t rows, index_t width, float eps,
              index_t threads);
void rms_norm_backward(const scalar *grad_output, const scalar *x, const float *inverse_rms, const scalar *weight,
                       const scalar *residual_grad, scalar *out, scalar *recomputed, index_t rows, index_t width,
                       index_t threads);
void swiglu(const scalar *gate, const scalar *up, scalar *out, index_t count, index_t threads);
void swiglu_backward(const scalar *grad_output, const scalar *gate, const scalar *up, scalar *d_gate, scalar *d_up, scalar *out,
                     index_t count, index_t threads);

/* attention.c */
index_t attention_workspace_size(index_t length, index_t head_size);
void causal_attention(const scalar *qkv, const scalar *cos, const scalar *sin, scalar *attn_output, float *workspace,
                      index_t batch, index_t length, index_t start_pos, index_t heads, index_t kv_heads, index_t head_size,
                      index_t rope_stride, float softmax_scale, index_t threads);
void causal_attention_backward(const scalar *grad_output, const scalar *qkv, const scalar *cos, const scalar *sin, scalar *d_qkv,
                               float *workspace, index_t batch, index_t length, index_t start_pos, index_t heads,
                               index_t kv_heads, index_t head_size, index_t rope_stride, float softmax_scale, index_t threads);

/* e^x within 2 units in the last place: 2^n · e^r with |r| <= ln 2 / 2, e^r by its series. Returns 0 below -87.3; NaN stays NaN. */
static inline float fast_exp(float x) {
    float clamped = x < -87.3f ? -87.3f : x;
    clamped = clamped > 88.0f ? 88.0f : clamped;
    float n = rintf(clamped * 1.44269504f), r = fmaf(n, -0.693359375f, clamped);
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
        float as_float;
    } power = {.bits = (uint32_t)((int32_t)n + 127) << 23};
    return x < -87.3f ? 0.0f : sum * power.as_float;
}

/* The sum of all lanes, halving the vector at each step. */
static inline float reduce_add(vec x) {
    union {
        vec all;
        half_vec halves[2];
    } sum16 = {x};
    union {
        half_vec all;
        quarter_vec quarters[2];
    } sum8 = {sum16.halves[0] + sum16.halves[1]};
    quarter_vec sum4 = sum8.quarters[0] + sum8.quarters[1];
    return (sum4[0] + sum4[2]) + (sum4[1] + sum4[3]);
}

/* `count` rows of small_matmul: dst (count, VEC_WIDTH) = a_rows · b, or += if add. */
#define MATMUL_ROWS(count)                                                                                                       \
    {                                                                                                                            \
        vec sum[count] = {0};                                                                                                    \
        for (index_t t = 0; add && t < count; t++) sum[t] = *(const vec *)(dst + t * out_stride);                                \
        for (index_t k = 0; k < depth; k++)                                                                                      \
            for (index_t t = 0; t < count; t++)                                                                                  \
                sum[t] += a_rows[t * a_row_stride + k * a_col_stride] * *(const vec *)(b_row + k * b_stride);                    \
        for (index_t t = 0; t < count; t++) *(vec *)(dst + t * out_stride) = sum[t];                                             \
    }

/* out (rows, width) = a · b, or += if add. a[i * a_row_stride + k * a_col_stride] is element (i, k) of a. Rows of b are b_stride
 * elements apart, rows of out out_stride. width is a multiple of VEC_WIDTH. */
static inline void small_matmul(float *restrict out, index_t out_stride, const float *restrict a, index_t a_row_stride,
                                index_t a_col_stride, const float *restrict b, index_t b_stride, index_t rows, index_t depth,
                                index_t width, int add) {
    for (index_t column = 0; column < width; column += VEC_WIDTH)
        for (index_t i = 0; i < rows;) {
            float *dst = out + i * out_stride + column;
            const float *a_rows = a + i * a_row_stride, *b_row = b + column;
            if (i + ROW_BLOCK <= rows) {
                MATMUL_ROWS(ROW_BLOCK)
                i += ROW_BLOCK;
            } else {
                MATMUL_ROWS(1)
                i++;
            }
        }
}

#endif
