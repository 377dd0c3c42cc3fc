/* What treats each row alone: norms, the gated unit, and what a vocabulary head says. */

#include "simd.h"

#define PIECE 1024 /* words whose sum is taken in float32 */

/* --------------------------------------------------------------------------------------------------------------- norm */

typedef struct {
    const number *x, *weight, *slope, *around;
    const float *kept;
    number *out, *again;
    float *inverse;
    size width;
    float eps;
} norm_job;

static void norm_rows(const void *data, size from, size to, size thread) {
    (void)thread;
    const norm_job *j = data;
    size width = j->width;
    for (size row = from; row < to; row++) {
        const number *x = j->x + row * width;
        number *out = j->out + row * width;
        wide sum = {0};
        float rest = 0;
        size i = 0;
        for (; i + WIDE <= width; i += WIDE) sum += wide_at(x + i) * wide_at(x + i);
        for (; i < width; i++) rest += widened(x[i]) * widened(x[i]);
        float inverse = 1 / sqrtf((total(sum) + rest) / width + j->eps);
        j->inverse[row] = inverse;
#pragma omp simd
        for (size i = 0; i < width; i++) out[i] = narrowed(widened(x[i]) * inverse * widened(j->weight[i]));
    }
}

void norm(const number *x, const number *weight, number *out, float *inverse, size rows, size width, float eps, size threads) {
    norm_job j = {.x = x, .weight = weight, .out = out, .inverse = inverse, .width = width, .eps = eps};
    share(norm_rows, &j, rows, width, threads);
}

static void norm_rows_back(const void *data, size from, size to, size thread) {
    (void)thread;
    const norm_job *j = data;
    size width = j->width;
    for (size row = from; row < to; row++) {
        const number *x = j->x + row * width, *slope = j->slope + row * width, *around = j->around + row * width;
        number *out = j->out + row * width, *again = j->again + row * width;
        float inverse = j->kept[row], rest = 0;
        wide sum = {0};
        size i = 0;
        for (; i + WIDE <= width; i += WIDE) sum += wide_at(slope + i) * wide_at(j->weight + i) * wide_at(x + i);
        for (; i < width; i++) rest += widened(slope[i]) * widened(j->weight[i]) * widened(x[i]);
        float along = (total(sum) + rest) * inverse * inverse * inverse / width;
#pragma omp simd
        for (size i = 0; i < width; i++) {
            float scaled = inverse * widened(j->weight[i]), of_x = widened(x[i]);
            again[i] = narrowed(of_x * scaled);
            out[i] = narrowed(widened(around[i]) + widened(slope[i]) * scaled - of_x * along);
        }
    }
}

void norm_back(const number *slope, const number *x, const float *inverse, const number *weight, const number *around, number *out,
               number *again, size rows, size width, size threads) {
    norm_job j = {.slope = slope, .x = x, .kept = inverse, .weight = weight, .around = around, .out = out, .again = again,
                  .width = width};
    share(norm_rows_back, &j, rows, width, threads);
}

/* ------------------------------------------------------------------------------------------------------------- swiglu */

typedef struct {
    const number *gate, *up, *slope;
    number *out, *d_gate, *d_up;
    size count;
} gate_job;

static void gated(const void *data, size from, size to, size thread) {
    (void)thread;
    const gate_job *j = data;
    size last = to * WIDE < j->count ? to * WIDE : j->count;
#pragma omp simd
    for (size i = from * WIDE; i < last; i++) {
        float gate = widened(j->gate[i]);
        j->out[i] = narrowed(gate / (1 + exponential(-gate)) * widened(j->up[i]));
    }
}

static void gated_back(const void *data, size from, size to, size thread) {
    (void)thread;
    const gate_job *j = data;
    size last = to * WIDE < j->count ? to * WIDE : j->count;
#pragma omp simd
    for (size i = from * WIDE; i < last; i++) {
        float gate = widened(j->gate[i]), up = widened(j->up[i]), slope = widened(j->slope[i]);
        float open = 1 / (1 + exponential(-gate)), opened = gate * open;
        j->out[i] = narrowed(opened * up);
        j->d_up[i] = narrowed(slope * opened);
        j->d_gate[i] = narrowed(slope * up * (open + opened * (1 - open)));
    }
}

void swiglu(const number *gate, const number *up, number *out, size count, size threads) {
    gate_job j = {.gate = gate, .up = up, .out = out, .count = count};
    share(gated, &j, rounded(count) / WIDE, WIDE, threads);
}

void swiglu_back(const number *slope, const number *gate, const number *up, number *d_gate, number *d_up, number *out, size count,
                 size threads) {
    gate_job j = {.slope = slope, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up, .out = out, .count = count};
    share(gated_back, &j, rounded(count) / WIDE, WIDE, threads);
}

/* ---------------------------------------------------------------------------------------------------- vocabulary head */

typedef struct {
    number *logits;
    float *logprobs, *entropies, *room, temperature;
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

/* Numbers of working memory of a thread: of a row in float32, where the logits' own place cannot hold that. */
size head_room(size words, size rows) {
    (void)rows;
    return IS_HALF ? words : 0;
}

static void head_rows(const void *data, size from, size to, size thread) {
    const head_job *j = data;
    size words = j->words;
    for (size n = from; n < to; n++) {
        number *logits = j->logits + n * words;
        float *row = IS_HALF ? j->room + thread * words : (float *)logits, most = -INFINITY;
        double sum = 0, mean = 0;
        if (IS_HALF)
#pragma omp simd
            for (size i = 0; i < words; i++) row[i] = widened(logits[i]);
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
            float of_own = row[j->tokens[n]] * share + 1; /* rounded once: p itself in bfloat16 would lose a slope near 0 */
#pragma omp simd
            for (size i = 0; i < words; i++) logits[i] = narrowed(row[i] * share);
            logits[j->tokens[n]] = narrowed(of_own);
        }
    }
}

void head_figures(number *logits, const int64_t *tokens, float *logprobs, float *entropies, float *room, size rows, size words,
                  float temperature, int learns, size threads) {
    head_job j = {.logits = logits, .tokens = tokens, .logprobs = logprobs, .entropies = entropies, .room = room,
                  .temperature = temperature, .words = words, .learns = learns};
    share(head_rows, &j, rows, words, threads);
}
