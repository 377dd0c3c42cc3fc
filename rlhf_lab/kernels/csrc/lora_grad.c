/* Gradients of a low-rank update, weight + scale · B · A. */

#include "simd.h"

#define MAX_RANKS 64 /* ranks computed together */

typedef struct {
    const scalar *x, *g, *given_x_a, *given_g_b;
    const float *a, *b_t;
    float *x_a, *g_b, *column_buffer, *d_a, *d_b, scale;
    index_t rows, in_features, out_features, rank, g_stride, x_a_stride, g_b_stride;
} lora_job;

/* low_rank (rank,) = a (rank, features) · x, `block` ranks at a time. features is a multiple of VEC_WIDTH. */
#define LORA_DOWN(block)                                                                                                         \
    for (; r + block <= rank; r += block) {                                                                                      \
        vec sums[block] = {0};                                                                                                   \
        for (index_t i = 0; i < features; i += VEC_WIDTH)                                                                        \
            for (index_t t = 0; t < block; t++) sums[t] += load_vec(x + i) * *(const vec *)(a + (r + t) * features + i);         \
        for (index_t t = 0; t < block; t++) low_rank[r + t] = reduce_add(sums[t]);                                               \
    }

static inline void lora_down(float *low_rank, const scalar *x, const float *a, index_t features, index_t rank) {
    index_t r = 0;
    LORA_DOWN(ROW_BLOCK)
    LORA_DOWN(1)
}

static void lora_down_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const lora_job *j = data;
    for (index_t row = begin; row < end; row++) {
        lora_down(j->x_a + row * j->rank, j->x + row * j->in_features, j->a, j->in_features, j->rank);
        lora_down(j->g_b + row * j->rank, j->g + row * j->g_stride, j->b_t, j->out_features, j->rank);
    }
}

static void copy_low_rank_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const lora_job *j = data;
    for (index_t row = begin; row < end; row++)
        for (index_t r = 0; r < j->rank; r++) {
            j->x_a[row * j->rank + r] = to_float(j->given_x_a[row * j->x_a_stride + r]);
            j->g_b[row * j->rank + r] = to_float(j->given_g_b[row * j->g_b_stride + r]);
        }
}

/* VEC_WIDTH columns as float32; bfloat16 columns are converted into `copy`. Sets *stride to the row stride of the result. */
static const float *load_columns(const scalar *src, index_t *stride, index_t rows, float *copy) {
    if (!IS_BFLOAT16) return (const float *)src;
    for (index_t row = 0; row < rows; row++) *(vec *)(copy + row * VEC_WIDTH) = load_vec(src + row * *stride);
    *stride = VEC_WIDTH;
    return copy;
}

static void lora_grad_task(const void *data, index_t begin, index_t end, index_t thread) {
    const lora_job *j = data;
    index_t a_blocks = j->in_features / VEC_WIDTH, rank = j->rank;
    float a_scale = j->given_g_b ? 1 : j->scale;
    for (index_t block = begin; block < end; block++) {
        float grads[MAX_RANKS * VEC_WIDTH];
        int is_a_grad = block < a_blocks;
        index_t column = (is_a_grad ? block : block - a_blocks) * VEC_WIDTH, stride = is_a_grad ? j->in_features : j->g_stride;
        const float *low_rank = is_a_grad ? j->g_b : j->x_a;
        const float *columns =
            load_columns((is_a_grad ? j->x : j->g) + column, &stride, j->rows, j->column_buffer + thread * j->rows * VEC_WIDTH);
        for (index_t r = 0; r < rank; r += MAX_RANKS) {
            index_t rank_count = rank - r < MAX_RANKS ? rank - r : MAX_RANKS;
            small_matmul(grads, VEC_WIDTH, low_rank + r, 1, rank, columns, stride, rank_count, j->rows, VEC_WIDTH, 0);
            if (is_a_grad)
                for (index_t t = 0; t < rank_count; t++)
                    for (index_t i = 0; i < VEC_WIDTH; i++)
                        j->d_a[(r + t) * j->in_features + column + i] = grads[t * VEC_WIDTH + i] * a_scale;
            else
                for (index_t i = 0; i < VEC_WIDTH; i++)
                    for (index_t t = 0; t < rank_count; t++)
                        j->d_b[(column + i) * rank + r + t] = grads[t * VEC_WIDTH + i] * j->scale;
        }
    }
}

/* Elements of working memory per thread: VEC_WIDTH columns. */
index_t lora_workspace_size(index_t rows, index_t width) {
    (void)width;
    return IS_BFLOAT16 ? rows * VEC_WIDTH : 0;
}

/* workspace: (2 rows + out_features) · rank elements, followed by lora_workspace_size elements per thread. given_x_a and given_g_b:
 * x · A^T and scale · g · B with row strides x_a_stride and g_b_stride, or NULL to compute them here. */
void lora_grads(const scalar *x, const scalar *g, const float *a, const float *b, const scalar *given_x_a,
                const scalar *given_g_b, float *d_a, float *d_b, float *workspace, index_t rows, index_t in_features,
                index_t out_features, index_t rank, index_t g_stride, index_t x_a_stride, index_t g_b_stride, float scale,
                index_t threads) {
    float *x_a = workspace, *g_b = x_a + rows * rank, *b_t = g_b + rows * rank;
    lora_job j = {.x = x,
                  .g = g,
                  .given_x_a = given_x_a,
                  .given_g_b = given_g_b,
                  .a = a,
                  .b_t = b_t,
                  .x_a = x_a,
                  .g_b = g_b,
                  .column_buffer = b_t + out_features * rank,
                  .d_a = d_a,
                  .d_b = d_b,
                  .scale = scale,
                  .rows = rows,
                  .in_features = in_features,
                  .out_features = out_features,
                  .rank = rank,
                  .g_stride = g_stride,
                  .x_a_stride = x_a_stride,
                  .g_b_stride = g_b_stride};
    if (given_x_a)
        parallel_for(copy_low_rank_task, &j, rows, 2 * rank, threads);
    else {
        for (index_t i = 0; i < out_features; i++)
            for (index_t r = 0; r < rank; r++) b_t[r * out_features + i] = b[i * rank + r];
        parallel_for(lora_down_task, &j, rows, in_features + out_features, threads);
    }
    parallel_for(lora_grad_task, &j, (in_features + out_features) / VEC_WIDTH, rows * VEC_WIDTH, threads);
}
