/* Row-wise kernels: RMSNorm, SwiGLU, and log-probabilities and entropy of the vocabulary head. */

#include "simd.h"

#define SUM_CHUNK 1024 /* logits summed in float32 before the sum is added to a double */

/* ------------------------------------------------------------------------------------------------------------ RMSNorm */

typedef struct {
    const scalar *x, *weight, *grad_output, *residual_grad;
    const float *saved_inverse_rms;
    scalar *out, *recomputed;
    float *inverse_rms;
    index_t width;
    float eps;
} rms_norm_job;

static void rms_norm_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const rms_norm_job *j = data;
    index_t width = j->width;
    for (index_t row = begin; row < end; row++) {
        const scalar *x = j->x + row * width;
        scalar *out = j->out + row * width;
        vec sum = {0};
        float tail = 0;
        index_t i = 0;
        for (; i + VEC_WIDTH <= width; i += VEC_WIDTH) sum += load_vec(x + i) * load_vec(x + i);
        for (; i < width; i++) tail += to_float(x[i]) * to_float(x[i]);
        float inverse_rms = 1 / sqrtf((reduce_add(sum) + tail) / width + j->eps);
        j->inverse_rms[row] = inverse_rms;
#pragma omp simd
        for (index_t i = 0; i < width; i++) out[i] = from_float(to_float(x[i]) * inverse_rms * to_float(j->weight[i]));
    }
}

void rms_norm(const scalar *x, const scalar *weight, scalar *out, float *inverse_rms, index_t rows, index_t width, float eps,
              index_t threads) {
    rms_norm_job j = {.x = x, .weight = weight, .out = out, .inverse_rms = inverse_rms, .width = width, .eps = eps};
    parallel_for(rms_norm_task, &j, rows, width, threads);
}

static void rms_norm_backward_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const rms_norm_job *j = data;
    index_t width = j->width;
    for (index_t row = begin; row < end; row++) {
        const scalar *x = j->x + row * width, *grad_output = j->grad_output + row * width,
                     *residual_grad = j->residual_grad + row * width;
        scalar *out = j->out + row * width, *recomputed = j->recomputed + row * width;
        float inverse_rms = j->saved_inverse_rms[row], tail = 0;
        vec sum = {0};
        index_t i = 0;
        for (; i + VEC_WIDTH <= width; i += VEC_WIDTH)
            sum += load_vec(grad_output + i) * load_vec(j->weight + i) * load_vec(x + i);
        for (; i < width; i++) tail += to_float(grad_output[i]) * to_float(j->weight[i]) * to_float(x[i]);
        float coefficient = (reduce_add(sum) + tail) * inverse_rms * inverse_rms * inverse_rms / width;
#pragma omp simd
        for (index_t i = 0; i < width; i++) {
            float scaled = inverse_rms * to_float(j->weight[i]), x_i = to_float(x[i]);
            recomputed[i] = from_float(x_i * scaled);
            out[i] = from_float(to_float(residual_grad[i]) + to_float(grad_output[i]) * scaled - x_i * coefficient);
        }
    }
}

void rms_norm_backward(const scalar *grad_output, const scalar *x, const float *inverse_rms, const scalar *weight,
                       const scalar *residual_grad, scalar *out, scalar *recomputed, index_t rows, index_t width,
                       index_t threads) {
    rms_norm_job j = {.grad_output = grad_output,
                      .x = x,
                      .saved_inverse_rms = inverse_rms,
                      .weight = weight,
                      .residual_grad = residual_grad,
                      .out = out,
                      .recomputed = recomputed,
                      .width = width};
    parallel_for(rms_norm_backward_task, &j, rows, width, threads);
}

/* ------------------------------------------------------------------------------------------------------------- SwiGLU */

typedef struct {
    const scalar *gate, *up, *grad_output;
    scalar *out, *d_gate, *d_up;
    index_t count;
} swiglu_job;

static void swiglu_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const swiglu_job *j = data;
    index_t stop = end * VEC_WIDTH < j->count ? end * VEC_WIDTH : j->count;
#pragma omp simd
    for (index_t i = begin * VEC_WIDTH; i < stop; i++) {
        float gate = to_float(j->gate[i]);
        j->out[i] = from_float(gate / (1 + fast_exp(-gate)) * to_float(j->up[i]));
    }
}

static void swiglu_backward_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const swiglu_job *j = data;
    index_t stop = end * VEC_WIDTH < j->count ? end * VEC_WIDTH : j->count;
#pragma omp simd
    for (index_t i = begin * VEC_WIDTH; i < stop; i++) {
        float gate = to_float(j->gate[i]), up = to_float(j->up[i]), grad_output = to_float(j->grad_output[i]);
        float sigmoid = 1 / (1 + fast_exp(-gate)), silu = gate * sigmoid;
        j->out[i] = from_float(silu * up);
        j->d_up[i] = from_float(grad_output * silu);
        j->d_gate[i] = from_float(grad_output * up * (sigmoid + silu * (1 - sigmoid)));
    }
}

void swiglu(const scalar *gate, const scalar *up, scalar *out, index_t count, index_t threads) {
    swiglu_job j = {.gate = gate, .up = up, .out = out, .count = count};
    parallel_for(swiglu_task, &j, round_up(count) / VEC_WIDTH, VEC_WIDTH, threads);
}

void swiglu_backward(const scalar *grad_output, const scalar *gate, const scalar *up, scalar *d_gate, scalar *d_up, scalar *out,
                     index_t count, index_t threads) {
    swiglu_job j = {
        .grad_output = grad_output, .gate = gate, .up = up, .d_gate = d_gate, .d_up = d_up, .out = out, .count = count};
    parallel_for(swiglu_backward_task, &j, round_up(count) / VEC_WIDTH, VEC_WIDTH, threads);
}

/* ---------------------------------------------------------------------------------------------------- vocabulary head */

typedef struct {
    scalar *logits;
    float *logprobs, *entropies, *workspace, temperature;
    const int64_t *tokens;
    index_t vocab_size;
    int needs_grad;
} logprobs_job;

/* logits become e^(logit - max); sums += that; weighted_sums += that times (logit - max), which counts as 0 at -inf. */
static inline void exp_and_sum(float *logits, index_t count, float max_logit, float *sums, float *weighted_sums) {
#pragma omp simd
    for (index_t i = 0; i < count; i++) {
        float shifted = logits[i] - max_logit, exp_shifted = fast_exp(shifted);
        sums[i] += exp_shifted;
        weighted_sums[i] += exp_shifted * (shifted < -1e30f ? -1e30f : shifted);
        logits[i] = exp_shifted;
    }
}

/* Elements of working memory per thread: one row in float32, unless the logits can be overwritten in float32. */
index_t logprobs_workspace_size(index_t vocab_size, index_t rows) {
    (void)rows;
    return IS_BFLOAT16 ? vocab_size : 0;
}

static void logprobs_task(const void *data, index_t begin, index_t end, index_t thread) {
    const logprobs_job *j = data;
    index_t vocab_size = j->vocab_size;
    for (index_t n = begin; n < end; n++) {
        scalar *logits = j->logits + n * vocab_size;
        float *row = IS_BFLOAT16 ? j->workspace + thread * vocab_size : (float *)logits, max_logit = -INFINITY;
        double sum = 0, weighted_sum = 0;
        if (IS_BFLOAT16)
#pragma omp simd
            for (index_t i = 0; i < vocab_size; i++) row[i] = to_float(logits[i]);
        if (j->temperature != 1)
#pragma omp simd
            for (index_t i = 0; i < vocab_size; i++) row[i] /= j->temperature;
#pragma omp simd reduction(max : max_logit)
        for (index_t i = 0; i < vocab_size; i++) max_logit = row[i] > max_logit ? row[i] : max_logit;
        float shifted_token_logit = row[j->tokens[n]] - max_logit;
        for (index_t chunk_start = 0; chunk_start < vocab_size; chunk_start += SUM_CHUNK) {
            index_t chunk_end = vocab_size - chunk_start < SUM_CHUNK ? vocab_size : chunk_start + SUM_CHUNK;
            float sums[VEC_WIDTH] = {0}, weighted_sums[VEC_WIDTH] = {0};
            index_t i = chunk_start;
            for (; i + VEC_WIDTH <= chunk_end; i += VEC_WIDTH) exp_and_sum(row + i, VEC_WIDTH, max_logit, sums, weighted_sums);
            exp_and_sum(row + i, chunk_end - i, max_logit, sums, weighted_sums);
            sum += reduce_add(*(const vec *)sums), weighted_sum += reduce_add(*(const vec *)weighted_sums);
        }
        float log_sum = (float)log(sum), negative_inverse_sum = (float)(-1 / sum);
        j->logprobs[n] = shifted_token_logit - log_sum;
        j->entropies[n] = log_sum - (float)(weighted_sum / sum);
        if (j->needs_grad) {
            float token_grad = row[j->tokens[n]] * negative_inverse_sum +
                               1; /* rounded once: rounding p to bfloat16 first would lose gradients near 0 */
#pragma omp simd
            for (index_t i = 0; i < vocab_size; i++) logits[i] = from_float(row[i] * negative_inverse_sum);
            logits[j->tokens[n]] = from_float(token_grad);
        }
    }
}

void logprobs_and_entropy(scalar *logits, const int64_t *tokens, float *logprobs, float *entropies, float *workspace,
                          index_t rows, index_t vocab_size, float temperature, int needs_grad, index_t threads) {
    logprobs_job j = {.logits = logits,
                      .tokens = tokens,
                      .logprobs = logprobs,
                      .entropies = entropies,
                      .workspace = workspace,
                      .temperature = temperature,
                      .vocab_size = vocab_size,
                      .needs_grad = needs_grad};
    parallel_for(logprobs_task, &j, rows, vocab_size, threads);
}
