/* The slopes of a low-rank update, weight + scale · B · A. */

#include "simd.h"

#define MOST 64 /* ranks of a slope found at once */

typedef struct {
    const number *x, *g, *known_x, *known_g;
    const float *a, *b_across;
    float *low_x, *low_g, *strips, *d_a, *d_b, scale;
    size rows, in, out, rank, apart, apart_x, apart_g;
} lora_job;

/* low (rank,) = factors (rank, count) · x, `most` of them at a time; count is a multiple of WIDE. */
#define LOWER(most)                                                                                                           \
    for (; r + most <= rank; r += most) {                                                                                     \
        wide sums[most] = {0};                                                                                                \
        for (size i = 0; i < count; i += WIDE)                                                                                \
            for (size t = 0; t < most; t++) sums[t] += wide_at(x + i) * *(const wide *)(factors + (r + t) * count + i);       \
        for (size t = 0; t < most; t++) low[r + t] = total(sums[t]);                                                          \
    }

static inline void lower(float *low, const number *x, const float *factors, size count, size rank) {
    size r = 0;
    LOWER(TILE)
    LOWER(1)
}

static void lower_rows(const void *data, size from, size to, size thread) {
    (void)thread;
    const lora_job *j = data;
    for (size row = from; row < to; row++) {
        lower(j->low_x + row * j->rank, j->x + row * j->in, j->a, j->in, j->rank);
        lower(j->low_g + row * j->rank, j->g + row * j->apart, j->b_across, j->out, j->rank);
    }
}

static void copy_rows(const void *data, size from, size to, size thread) {
    (void)thread;
    const lora_job *j = data;
    for (size row = from; row < to; row++)
        for (size r = 0; r < j->rank; r++) {
            j->low_x[row * j->rank + r] = widened(j->known_x[row * j->apart_x + r]);
            j->low_g[row * j->rank + r] = widened(j->known_g[row * j->apart_g + r]);
        }
}

/* Where WIDE columns lie as float32, and how far apart their rows: a copy of them if they are of another kind. */
static const float *strip(const number *from, size *apart, size rows, float *copy) {
    if (!IS_HALF) return (const float *)from;
    for (size row = 0; row < rows; row++) *(wide *)(copy + row * WIDE) = wide_at(from + row * *apart);
    *apart = WIDE;
    return copy;
}

static void slopes_of_columns(const void *data, size from, size to, size thread) {
    const lora_job *j = data;
    size of_a = j->in / WIDE, rank = j->rank;
    float of_a_scale = j->known_g ? 1 : j->scale;
    for (size which = from; which < to; which++) {
        float found[MOST * WIDE];
        int is_a = which < of_a;
        size column = (is_a ? which : which - of_a) * WIDE, apart = is_a ? j->in : j->apart;
        const float *low = is_a ? j->low_g : j->low_x;
        const float *of = strip((is_a ? j->x : j->g) + column, &apart, j->rows, j->strips + thread * j->rows * WIDE);
        for (size r = 0; r < rank; r += MOST) {
            size some = rank - r < MOST ? rank - r : MOST;
            product(found, WIDE, low + r, 1, rank, of, apart, some, j->rows, WIDE, 0);
            if (is_a)
                for (size t = 0; t < some; t++)
                    for (size i = 0; i < WIDE; i++) j->d_a[(r + t) * j->in + column + i] = found[t * WIDE + i] * of_a_scale;
            else
                for (size i = 0; i < WIDE; i++)
                    for (size t = 0; t < some; t++) j->d_b[(column + i) * rank + r + t] = found[t * WIDE + i] * j->scale;
        }
    }
}

/* Numbers of working memory of a thread: of a strip. */
size lora_room(size rows, size each) {
    (void)each;
    return IS_HALF ? rows * WIDE : 0;
}

/* room: (2 rows + out) · rank numbers, and behind them lora_room of each thread. known_x, known_g: x · A and scale · g · B, of whose
 * tensors they may be parts, or NULL: then A and B say what they are. */
void lora_slopes(const number *x, const number *g, const float *a, const float *b, const number *known_x, const number *known_g,
                 float *d_a, float *d_b, float *room, size rows, size in, size out, size rank, size apart, size apart_x, size apart_g,
                 float scale, size threads) {
    float *low_x = room, *low_g = low_x + rows * rank, *b_across = low_g + rows * rank;
    lora_job j = {.x = x, .g = g, .known_x = known_x, .known_g = known_g, .a = a, .b_across = b_across, .low_x = low_x,
                  .low_g = low_g, .strips = b_across + out * rank, .d_a = d_a, .d_b = d_b, .scale = scale, .rows = rows, .in = in,
                  .out = out, .rank = rank, .apart = apart, .apart_x = apart_x, .apart_g = apart_g};
    if (known_x)
        share(copy_rows, &j, rows, 2 * rank, threads);
    else {
        for (size i = 0; i < out; i++)
            for (size r = 0; r < rank; r++) b_across[r * out + i] = b[i * rank + r];
        share(lower_rows, &j, rows, in + out, threads);
    }
    share(slopes_of_columns, &j, (in + out) / WIDE, rows * WIDE, threads);
}
