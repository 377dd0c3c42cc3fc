/* What treats each row alone: norms, the gated unit, and what a vocabulary head says. */

#include "common.h"

#define PIECE 1024 /* words whose sum is taken in float32 */

/* --------------------------------------------------------------------------------------------------------------- norm */

typedef struct {
    const float *x, *weight, *slope, *around, *kept;
    float *out, *again, *inverse;
    size width;
    float eps;
} norm_job;

static void norm_rows(const void *data, size from, size to, size number) {
    (void)number;
    const norm_job *j = data;
    size width = j->width;
    for (size row = from; row < to; row++) {
        const float *x = j->x + row * width;
        float *out = j->out + row * width, inverse = 1 / sqrtf(dot(x, x, width) / width + j->eps);
        j->inverse[row] = inverse;
#pragma omp simd
        for (size i = 0; i < width; i++) out[i] = x[i] * inverse * j->weight[i];
    }
}

void norm(const float *x, const float *weight, float *out, float *inverse, size rows, size width, float eps, size threads) {
    norm_job j = {.x = x, .weight = weight, .out = out, .inverse = inverse, .width = width, .eps = eps};
    share(norm_rows, &j, rows, width, threads);
}

static void norm_rows_back(const void *data, size from, size to, size number) {
    (void)number;
    const norm_job *j = data;
    size width = j->width;
    for (size row = from; row < to; row++) {
        const float *x = j->x + row * width, *slope = j->slope + row * width, *around = j->around + row * width;
        float *out = j->out + row * width, *again = j->again + row * width, inverse = j->kept[row];
#pragma omp simd
        for (size i = 0; i < width; i++) again[i] = slope[i] * j->weight[i];
        float along = dot(again, x, width) * inverse * inverse * inverse / width;
#pragma omp simd
        for (size i = 0; i < width; i++) {
            float scaled = inverse * j->weight[i];
            again[i] = x[i] * scaled;
            out[i] = around[i] + slope[i] * scaled - x[i] * along;
        }
    }
}

void norm_back(const float *slope, const float *x, const float *inverse, const float *weight, const float *around, float *out,
               float *again, size rows, size width, size threads) {
    norm_job j = {.slope = slope, .x = x, .kept = inverse, .weight = weight, .around = around, .out = out, .again = again,
                  .width = width};
    share(norm_rows_back, &j, rows, width, threads);
}

/* ------------------------------------------------------------------------------------------------------------- swiglu */

typedef struct {
    const float *gate, *up, *slope;
    float *out, *d_gate, *d_up;
    size count;
} gate_job;

static void gated(const void *data, size from, size to, size number) {
    (void)number;
    const gate_job *j = data;
    size last = to * WIDE < j->count ? to * WIDE : j->count;
#pragma omp simd
    for (size i = from * WIDE; i < last; i++) j->out[i] = j->gate[i] / (1 + exponential(-j->gate[i])) * j->up[i];
}

static void gated_back(const void *data, size from, size to, size number) {
    (void)number;
    const gate_job *j = data;
    size last = to * WIDE < j->count ? to * WIDE : j->count;
#pragma omp simd
    for (size i = from * WIDE; i < last; i++) {
        float open = 1 / (1 + exponential(-j->gate[i])), opened = j->gate[i] * open, slope = j->slope[i];
        j->out[i] = opened * j->up[i];
        j->d_up[i] = slope * opened;
        j->d_gate[i] = slope * j->up[i] * (open + opened * (1 - open));
    }
}

void swiglu(const float *gate, const float *up, float *out, size count, size threads) {
    gate_job j = {.gate = gate, .up = up, .out = out, .count = count};
    share(gated, &j, rounded(count) / WIDE, WIDE, threads);
}

void swiglu_back(const float *slope, const float *gate, const float *up, float *d_gate, float *d_up, float *out, size count,
                 size threads) {
    gate_job j = {.slope = slope, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up, .out = out, .count = count};
    share(gated_back, &j, rounded(count) / WIDE, WIDE, threads);
}

/* ---------------------------------------------------------------------------------------------------- vocabulary head */

typedef struct {
    float *logits, *logprobs, *entropies, temperature;
    const int64_t *tokens;
    size words;
    int learns;
} head_job;

/* Each logit becomes its e^(logit - most), added to its sum; and so is that times (logit - most), 0 where it is -inf. */
static inline void weigh(float *logits, size count, float most, float *sums, float *means) {
#pragma omp simd
    for (size w = 0; w < count; w++) {
        float below = logits[w] - most, one = exponential(below);
        sums[w] += one;
        means[w] += one * (below < -1e30f ? -1e30f : below);
        logits[w] = one;
    }
}

static void head_rows(const void *data, size from, size to, size number) {
    (void)number;
    const head_job *j = data;
    size words = j->words;
    for (size n = from; n < to; n++) {
        float *row = j->logits + n * words, most = -INFINITY;
        double sum = 0, mean = 0;
        if (j->temperature != 1)
#pragma omp simd
            for (size i = 0; i < words; i++) row[i] /= j->temperature;
#pragma omp simd reduction(max : most)
        for (size i = 0; i < words; i++) most = row[i] > most ? row[i] : most;
        float own = row[j->tokens[n]] - most;
        for (size start = 0; start < words; start += PIECE) {
            size end = words - start < PIECE ? words : start + PIECE;
            float sums[WIDE] = {0}, means[WIDE] = {0};
            size i = start;
            for (; i + WIDE <= end; i += WIDE) weigh(row + i, WIDE, most, sums, means);
            weigh(row + i, end - i, most, sums, means);
            sum += total(*(const wide *)sums), mean += total(*(const wide *)means);
        }
        float log_sum = (float)log(sum), share = (float)(-1 / sum);
        j->logprobs[n] = own - log_sum;
        j->entropies[n] = log_sum - (float)(mean / sum);
        if (j->learns) {
#pragma omp simd
            for (size i = 0; i < words; i++) row[i] *= share;
            row[j->tokens[n]] += 1;
        }
    }
}

void head_figures(float *logits, const int64_t *tokens, float *logprobs, float *entropies, size rows, size words, float temperature,
                  int learns, size threads) {
    head_job j = {.logits = logits, .tokens = tokens, .logprobs = logprobs, .entropies = entropies, .temperature = temperature,
                  .words = words, .learns = learns};
    share(head_rows, &j, rows, words, threads);
}
