/* Causal attention with rotary embedding, for whole sequences and for one new token per sequence. */

#include "simd.h"

#define QUERY_BLOCK 16       /* queries of a head computed together */
#define PREFETCH_DISTANCE 16 /* keys to prefetch ahead of the current one */

typedef struct {
    const scalar *qkv, *cos, *sin, *grad_output;
    scalar *attn_output, *d_qkv;
    float *workspace;
    index_t length, start_pos, heads, kv_heads, head_size, rope_stride;
    float softmax_scale;
} attention_job;

/* Loads one head of some tokens as float32, (rows, width): rotated unless cos is NULL, multiplied by `scale` if rotated, padded with
 * zeros beyond head_size. */
static void load_head(float *dst, index_t width, const scalar *src, index_t src_stride, const scalar *cos, const scalar *sin,
                      index_t rows, index_t head_size, float scale) {
    index_t half = head_size / 2;
    for (index_t t = 0; t < rows; t++, dst += width, src += src_stride) {
        if (cos) {
            const scalar *c = cos + t * head_size, *s = sin + t * head_size;
#pragma omp simd
            for (index_t i = 0; i < half; i++) {
                float x1 = to_float(src[i]), x2 = to_float(src[i + half]);
                dst[i] = (x1 * to_float(c[i]) + x2 * to_float(s[i])) * scale;
                dst[i + half] = (x2 * to_float(c[i + half]) + x1 * to_float(s[i + half])) * scale;
            }
        } else
#pragma omp simd
            for (index_t i = 0; i < head_size; i++) dst[i] = to_float(src[i]);
        for (index_t i = head_size; i < width; i++) dst[i] = 0;
    }
}

/* The backward of load_head: inverse rotation unless cos is NULL, multiplied by `scale` if rotated. */
static void store_head(scalar *dst, index_t dst_stride, const float *src, index_t width, const scalar *cos, const scalar *sin,
                       index_t rows, index_t head_size, float scale) {
    index_t half = head_size / 2;
    for (index_t t = 0; t < rows; t++, dst += dst_stride, src += width) {
        if (cos) {
            const scalar *c = cos + t * head_size, *s = sin + t * head_size;
#pragma omp simd
            for (index_t i = 0; i < half; i++) {
                float x1 = src[i], x2 = src[i + half];
                dst[i] = from_float((x1 * to_float(c[i]) + x2 * to_float(s[i + half])) * scale);
                dst[i + half] = from_float((x2 * to_float(c[i + half]) + x1 * to_float(s[i])) * scale);
            }
        } else
#pragma omp simd
            for (index_t i = 0; i < head_size; i++) dst[i] = from_float(src[i]);
    }
}

/* (rows, head_size) -> (head_size, dst_stride), with zeros in columns beyond `rows`. */
static void transpose(float *dst, index_t dst_stride, const float *src, index_t src_stride, index_t rows, index_t head_size) {
    for (index_t t = 0; t < rows; t++)
        for (index_t i = 0; i < head_size; i++) dst[i * dst_stride + t] = src[t * src_stride + i];
    for (index_t i = 0; i < head_size; i++)
        for (index_t t = rows; t < dst_stride; t++) dst[i * dst_stride + t] = 0;
}

/* Softmax of the first `count` elements of a row. The tail, up to a multiple of VEC_WIDTH, becomes 0. */
static void softmax(float *row, index_t count) {
    index_t padded_count = round_up(count);
    float lane_max[VEC_WIDTH], sums[VEC_WIDTH] = {0}, max = -INFINITY;
    for (index_t t = count; t < padded_count; t++) row[t] = -INFINITY;
    for (index_t lane = 0; lane < VEC_WIDTH; lane++) lane_max[lane] = -INFINITY;
    for (index_t t = 0; t < padded_count; t += VEC_WIDTH)
        for (index_t lane = 0; lane < VEC_WIDTH; lane++)
            lane_max[lane] = row[t + lane] > lane_max[lane] ? row[t + lane] : lane_max[lane];
#pragma omp simd reduction(max : max)
    for (index_t lane = 0; lane < VEC_WIDTH; lane++) max = lane_max[lane] > max ? lane_max[lane] : max;
    for (index_t t = 0; t < padded_count; t += VEC_WIDTH)
#pragma omp simd
        for (index_t lane = 0; lane < VEC_WIDTH; lane++) {
            row[t + lane] = fast_exp(row[t + lane] - max);
            sums[lane] += row[t + lane];
        }
    float inverse_sum = 1 / reduce_add(*(const vec *)sums);
    for (index_t t = 0; t < padded_count; t += VEC_WIDTH)
#pragma omp simd
        for (index_t lane = 0; lane < VEC_WIDTH; lane++) row[t + lane] *= inverse_sum;
}

/* Causal attention weights (rows, padded_length) of the queries of tokens `start` to `start + rows` - 1. */
static void attention_weights(float *weights, index_t padded_length, const float *q, const float *k_t, index_t width,
                              index_t start, index_t rows, index_t head_size) {
    index_t padded_end = round_up(start + rows);
    small_matmul(weights, padded_length, q, width, 1, k_t, padded_length, rows, head_size, padded_end, 0);
    for (index_t i = 0; i < rows; i++) {
        float *row = weights + i * padded_length;
        softmax(row, start + i + 1);
        for (index_t t = round_up(start + i + 1); t < padded_end; t++) row[t] = 0;
    }
}

/* Floats of working memory per thread. */
index_t attention_workspace_size(index_t length, index_t head_size) {
    index_t width = round_up(head_size), padded_length = round_up(length);
    return (4 * length + 3 * QUERY_BLOCK) * width + (2 * width + 2 * QUERY_BLOCK) * padded_length;
}

static void attention_task(const void *data, index_t begin, index_t end, index_t thread) {
    const attention_job *j = data;
    index_t head_size = j->head_size, length = j->length, width = round_up(head_size), padded_length = round_up(length),
            query_count = length - j->start_pos;
    index_t qkv_stride = (j->heads + 2 * j->kv_heads) * head_size, heads_per_kv_head = j->heads / j->kv_heads;
    float *k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,
          *k_t = v + length * width;
    float *q = k_t + width * padded_length, *weights = q + QUERY_BLOCK * width;
    for (index_t item = begin; item < end; item++) {
        index_t sequence = item / j->kv_heads, kv_head = item % j->kv_heads;
        const scalar *qkv = j->qkv + sequence * length * qkv_stride, *cos = j->cos + sequence * j->rope_stride,
                     *sin = j->sin + sequence * j->rope_stride;
        load_head(k, width, qkv + (j->heads + kv_head) * head_size, qkv_stride, cos, sin, length, head_size, 1);
        load_head(v, width, qkv + (j->heads + j->kv_heads + kv_head) * head_size, qkv_stride, NULL, NULL, length, head_size, 1);
        transpose(k_t, padded_length, k, width, length, head_size);
        for (index_t head = kv_head * heads_per_kv_head; head < (kv_head + 1) * heads_per_kv_head; head++)
            for (index_t start = j->start_pos; start < length; start += QUERY_BLOCK) {
                index_t rows = length - start < QUERY_BLOCK ? length - start : QUERY_BLOCK;
                const scalar *query = qkv + start * qkv_stride + head * head_size;
                load_head(q, width, query, qkv_stride, cos + start * head_size, sin + start * head_size, rows, head_size,
                          j->softmax_scale);
                attention_weights(weights, padded_length, q, k_t, width, start, rows, head_size);
                small_matmul(q, width, weights, padded_length, 1, v, width, rows, start + rows, width, 0);
                scalar *attn_output =
                    j->attn_output + ((sequence * query_count + start - j->start_pos) * j->heads + head) * head_size;
                store_head(attn_output, j->heads * head_size, q, width, NULL, NULL, rows, head_size, 1);
            }
    }
}

void causal_attention(const scalar *qkv, const scalar *cos, const scalar *sin, scalar *attn_output, float *workspace,
                      index_t batch, index_t length, index_t start_pos, index_t heads, index_t kv_heads, index_t head_size,
                      index_t rope_stride, float softmax_scale, index_t threads) {
    attention_job j = {.qkv = qkv,
                       .cos = cos,
                       .sin = sin,
                       .attn_output = attn_output,
                       .workspace = workspace,
                       .length = length,
                       .start_pos = start_pos,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head_size = head_size,
                       .rope_stride = rope_stride,
                       .softmax_scale = softmax_scale};
    parallel_for(attention_task, &j, batch * kv_heads, heads / kv_heads * length * head_size, threads);
}

static void attention_backward_task(const void *data, index_t begin, index_t end, index_t thread) {
    const attention_job *j = data;
    index_t head_size = j->head_size, length = j->length, width = round_up(head_size), padded_length = round_up(length),
            query_count = length - j->start_pos;
    index_t qkv_stride = (j->heads + 2 * j->kv_heads) * head_size, heads_per_kv_head = j->heads / j->kv_heads;
    float *k = j->workspace + thread * attention_workspace_size(length, head_size), *v = k + length * width,
          *d_k = v + length * width;
    float *d_v = d_k + length * width, *k_t = d_v + length * width, *v_t = k_t + width * padded_length;
    float *q = v_t + width * padded_length, *d_q = q + QUERY_BLOCK * width, *d_output = d_q + QUERY_BLOCK * width;
    float *weights = d_output + QUERY_BLOCK * width, *d_weights = weights + QUERY_BLOCK * padded_length;
    for (index_t item = begin; item < end; item++) {
        index_t sequence = item / j->kv_heads, kv_head = item % j->kv_heads, k_offset = (j->heads + kv_head) * head_size;
        index_t v_offset = k_offset + j->kv_heads * head_size;
        const scalar *qkv = j->qkv + sequence * length * qkv_stride, *cos = j->cos + sequence * j->rope_stride,
                     *sin = j->sin + sequence * j->rope_stride;
        scalar *d_qkv = j->d_qkv + sequence * length * qkv_stride;
        load_head(k, width, qkv + k_offset, qkv_stride, cos, sin, length, head_size, 1);
        load_head(v, width, qkv + v_offset, qkv_stride, NULL, NULL, length, head_size, 1);
        transpose(k_t, padded_length, k, width, length, head_size);
        transpose(v_t, padded_length, v, width, length, head_size);
        memset(d_k, 0, 2 * length * width * sizeof(float));
        for (index_t head = kv_head * heads_per_kv_head; head < (kv_head + 1) * heads_per_kv_head; head++) {
            for (index_t t = 0; t < j->start_pos; t++)
                memset(d_qkv + t * qkv_stride + head * head_size, 0, head_size * sizeof(scalar));
            for (index_t start = j->start_pos; start < length; start += QUERY_BLOCK) {
                index_t rows = length - start < QUERY_BLOCK ? length - start : QUERY_BLOCK, key_count = start + rows,
                        padded_keys = round_up(key_count);
                index_t q_offset = start * qkv_stride + head * head_size;
                const scalar *q_cos = cos + start * head_size, *q_sin = sin + start * head_size;
                const scalar *grad_output =
                    j->grad_output + ((sequence * query_count + start - j->start_pos) * j->heads + head) * head_size;
                load_head(q, width, qkv + q_offset, qkv_stride, q_cos, q_sin, rows, head_size, j->softmax_scale);
                load_head(d_output, width, grad_output, j->heads * head_size, NULL, NULL, rows, head_size, 1);
                attention_weights(weights, padded_length, q, k_t, width, start, rows, head_size);
                small_matmul(d_v, width, weights, 1, padded_length, d_output, width, key_count, rows, width, 1);
                small_matmul(d_weights, padded_length, d_output, width, 1, v_t, padded_length, rows, head_size, padded_keys, 0);
                for (index_t i = 0; i < rows; i++) {
                    float *row = weights + i * padded_length, *d_row = d_weights + i * padded_length, mean = 0;
#pragma omp simd reduction(+ : mean)
                    for (index_t t = 0; t < padded_keys; t++) mean += row[t] * d_row[t];
#pragma omp simd
                    for (index_t t = 0; t < padded_keys; t++) d_row[t] = row[t] * (d_row[t] - mean);
                }
                small_matmul(d_q, width, d_weights, padded_length, 1, k, width, rows, key_count, width, 0);
                small_matmul(d_k, width, d_weights, 1, padded_length, q, width, key_count, rows, width, 1);
                store_head(d_qkv + q_offset, qkv_stride, d_q, width, q_cos, q_sin, rows, head_size, j->softmax_scale);
            }
        }
        store_head(d_qkv + k_offset, qkv_stride, d_k, width, cos, sin, length, head_size, 1);
        store_head(d_qkv + v_offset, qkv_stride, d_v, width, NULL, NULL, length, head_size, 1);
    }
}

void causal_attention_backward(const scalar *grad_output, const scalar *qkv, const scalar *cos, const scalar *sin, scalar *d_qkv,
                               float *workspace, index_t batch, index_t length, index_t start_pos, index_t heads,
                               index_t kv_heads, index_t head_size, index_t rope_stride, float softmax_scale, index_t threads) {
    attention_job j = {.grad_output = grad_output,
                       .qkv = qkv,
                       .cos = cos,
                       .sin = sin,
                       .d_qkv = d_qkv,
                       .workspace = workspace,
                       .length = length,
                       .start_pos = start_pos,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head_size = head_size,
                       .rope_stride = rope_stride,
                       .softmax_scale = softmax_scale};
    parallel_for(attention_backward_task, &j, batch * kv_heads, heads / kv_heads * length * head_size, threads);
}

typedef struct {
    const scalar *qkv, *cos, *sin;
    const uint8_t *attention_mask;
    scalar *keys, *values, *attn_output;
    float *workspace;
    index_t cached_length, capacity, heads, kv_heads, head_size;
    float softmax_scale;
} decode_job;

index_t decode_attention_workspace_size(index_t cached_length, index_t head_size) {
    return round_up(cached_length + 1) + round_up(head_size);
}

static inline float dot(const float *a, const scalar *b, index_t count) {
    vec sum = {0};
    index_t i = 0;
    for (; i + VEC_WIDTH <= count; i += VEC_WIDTH) sum += *(const vec *)(a + i) * load_vec(b + i);
    float tail = 0;
    for (; i < count; i++) tail += a[i] * to_float(b[i]);
    return reduce_add(sum) + tail;
}

/* out (width,) = weights · rows, with four partial sums so that additions do not wait for each other. */
static void weighted_sum(scalar *out, const float *weights, const scalar *rows, index_t count, index_t width) {
    index_t i = 0;
    for (; i + VEC_WIDTH <= width; i += VEC_WIDTH) {
        vec sums[4] = {0};
        index_t t = 0;
        for (; t + 4 <= count; t += 4)
            for (index_t lane = 0; lane < 4; lane++) sums[lane] += weights[t + lane] * load_vec(rows + (t + lane) * width + i);
        for (; t < count; t++) sums[0] += weights[t] * load_vec(rows + t * width + i);
        store_vec(out + i, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    for (; i < width; i++) {
        float sum = 0;
        for (index_t t = 0; t < count; t++) sum += weights[t] * to_float(rows[t * width + i]);
        out[i] = from_float(sum);
    }
}

static void decode_task(const void *data, index_t begin, index_t end, index_t thread) {
    const decode_job *j = data;
    index_t head_size = j->head_size, width = round_up(head_size), qkv_stride = (j->heads + 2 * j->kv_heads) * head_size,
            heads_per_kv_head = j->heads / j->kv_heads;
    index_t count = j->cached_length + 1;
    float *query = j->workspace + thread * decode_attention_workspace_size(j->cached_length, head_size), *scores = query + width;
    for (index_t item = begin; item < end; item++) {
        index_t sequence = item / j->kv_heads, kv_head = item % j->kv_heads;
        const scalar *qkv = j->qkv + sequence * qkv_stride, *cos = j->cos + sequence * head_size,
                     *sin = j->sin + sequence * head_size;
        scalar *keys = j->keys + item * j->capacity * head_size, *values = j->values + item * j->capacity * head_size;
        load_head(query, width, qkv + (j->heads + kv_head) * head_size, qkv_stride, cos, sin, 1, head_size, 1);
        store_head(keys + j->cached_length * head_size, head_size, query, width, NULL, NULL, 1, head_size, 1);
        memcpy(values + j->cached_length * head_size, qkv + (j->heads + j->kv_heads + kv_head) * head_size,
               head_size * sizeof(scalar));
        for (index_t head = kv_head * heads_per_kv_head; head < (kv_head + 1) * heads_per_kv_head; head++) {
            scalar *attn_output = j->attn_output + (sequence * j->heads + head) * head_size;
            load_head(query, width, qkv + head * head_size, qkv_stride, cos, sin, 1, head_size, j->softmax_scale);
            for (index_t t = 0; t < count; t++) {
                for (index_t i = 0; i < head_size; i += VEC_WIDTH) { /* hide the memory latency behind the computation */
                    __builtin_prefetch(keys + (t + PREFETCH_DISTANCE) * head_size + i);
                    __builtin_prefetch(values + t * head_size + i);
                }
                float score = dot(query, keys + t * head_size, head_size);
                scores[t] = j->attention_mask && !j->attention_mask[sequence * count + t] ? -INFINITY : score;
            }
            softmax(scores, count);
            weighted_sum(attn_output, scores, values, count, head_size);
        }
    }
}

void decode_attention(const scalar *qkv, const scalar *cos, const scalar *sin, const uint8_t *attention_mask, scalar *keys,
                      scalar *values, scalar *attn_output, float *workspace, index_t batch, index_t cached_length,
                      index_t capacity, index_t heads, index_t kv_heads, index_t head_size, float softmax_scale,
                      index_t threads) {
    decode_job j = {.qkv = qkv,
                    .cos = cos,
                    .sin = sin,
                    .attention_mask = attention_mask,
                    .keys = keys,
                    .values = values,
                    .attn_output = attn_output,
                    .workspace = workspace,
                    .cached_length = cached_length,
                    .capacity = capacity,
                    .heads = heads,
                    .kv_heads = kv_heads,
                    .head_size = head_size,
                    .softmax_scale = softmax_scale};
    parallel_for(decode_task, &j, batch * kv_heads, heads / kv_heads * (cached_length + 1) * head_size, threads);
}
