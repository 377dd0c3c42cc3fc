/* The slopes of a low-rank update, weight + scale · B · A. */

#include "common.h"

typedef struct {
    const float *x, *g, *a, *b_across;
    float *low_x, *low_g, *d_a, *d_b, scale;
    size rows, in, out, rank, apart;
} lora_job;

/* low (rank,) = factors (rank, count) · x, `most` of them at a time; count is a multiple of WIDE. */
#define LOWER(most)                                                                                                           \
    for (; r + most <= rank; r += most) {                                                                                     \
        wide sums[most] = {0};                                                                                                \
        for (size i = 0; i < count; i += WIDE)                                                                                \
            for (size t = 0; t < most; t++) sums[t] += *(const wide *)(x + i) * *(const wide *)(factors + (r + t) * count + i); \
        for (size t = 0; t < most; t++) low[r + t] = total(sums[t]);                                                          \
    }

static inline void lower(float *low, const float *x, const float *factors, size count, size rank) {
    size r = 0;
    LOWER(TILE)
    LOWER(1)
}

static void lower_rows(const void *data, size from, size to, size number) {
    (void)number;
    const lora_job *j = data;
    for (size row = from; row < to; row++) {
        lower(j->low_x + row * j->rank, j->x + row * j->in, j->a, j->in, j->rank);
        lower(j->low_g + row * j->rank, j->g + row * j->apart, j->b_across, j->out, j->rank);
    }
}

static void slopes_of_columns(const void *data, size from, size to, size number) {
    (void)number;
    const lora_job *j = data;
    size of_a = j->in / WIDE, rank = j->rank;
    for (size which = from; which < to; which++) {
        float found[64 * WIDE];
        size column = (which < of_a ? which : which - of_a) * WIDE;
        for (size r = 0; r < rank; r += 64) {
            size some = rank - r < 64 ? rank - r : 64;
            if (which < of_a) {
                product(found, WIDE, j->low_g + r, 1, rank, j->x + column, j->in, some, j->rows, WIDE, 0);
                for (size t = 0; t < some; t++)
                    for (size i = 0; i < WIDE; i++) j->d_a[(r + t) * j->in + column + i] = found[t * WIDE + i] * j->scale;
            } else {
                product(found, WIDE, j->low_x + r, 1, rank, j->g + column, j->apart, some, j->rows, WIDE, 0);
                for (size i = 0; i < WIDE; i++)
                    for (size t = 0; t < some; t++) j->d_b[(column + i) * rank + r + t] = found[t * WIDE + i] * j->scale;
            }
        }
    }
}

void lora_slopes(const float *x, const float *g, const float *a, const float *b, float *d_a, float *d_b, float *room, size rows,
                 size in, size out, size rank, size apart, float scale, size threads) {
    float *low_x = room, *low_g = low_x + rows * rank, *b_across = low_g + rows * rank;
    for (size i = 0; i < out; i++)
        for (size r = 0; r < rank; r++) b_across[r * out + i] = b[i * rank + r];
    lora_job j = {.x = x, .g = g, .a = a, .b_across = b_across, .low_x = low_x, .low_g = low_g, .d_a = d_a, .d_b = d_b,
                  .scale = scale, .rows = rows, .in = in, .out = out, .rank = rank, .apart = apart};
    share(lower_rows, &j, rows, in + out, threads);
    share(slopes_of_columns, &j, (in + out) / WIDE, rows * WIDE, threads);
}
