/* A whole Llama decoder layer with its LoRA updates, forward and backward: see models/fused_llama/layer.py.
 *
 * Each thread computes a few sequences at a time, so that intermediate results stay in its core's cache. Of the forward pass only
 * the attention output is saved for the backward pass; the rest is recomputed, because products cost less than memory here.
 * Gradients are computed per sequence and then summed in order, so they do not depend on the number of threads.
 */

#include "amx_matmul.h"

#ifdef HAS_BF16_MATMUL

enum { Q, K, V, O, GATE, UP, DOWN, PROJECTION_COUNT };

/* One of the seven projections: the tiled W and W^T, and of its LoRA update A, s · B, (s · B)^T and A^T. padded_rank: the rank
 * rounded up to a multiple of TILE_DEPTH; 0 without an update. */
typedef struct {
    const scalar *weight, *weight_t, *lora_a, *lora_b, *lora_b_t, *lora_a_t;
    index_t in_features, out_features, rank, padded_rank;
} projection;

/* bias: of q, k and v concatenated, or NULL. scale: s. */
typedef struct {
    projection projections[PROJECTION_COUNT];
    const scalar *bias, *norms[2];
    index_t heads, kv_heads, head_size;
    float eps[2], softmax_scale, scale;
} layer;

/* Intermediate results of some sequences. */
typedef struct {
    scalar *normalized, *qkv, *attn_output, *residual_grad, *residual_mid, *gate, *up, *gated, *low_rank[PROJECTION_COUNT];
    float *inverse_rms[2], *attention_workspace;
    scalar *normalized2, *d_gate, *d_up, *d_gated, *d_normalized, *d_residual_mid, *d_attn_output, *d_qkv,
        *low_rank_grad[PROJECTION_COUNT], *narrow_copy;
    index_t narrow_copy_size;
} layer_workspace;

static inline index_t hidden_size(const layer *w) { return w->projections[Q].in_features; }
static inline index_t qkv_size(const layer *w) { return (w->heads + 2 * w->kv_heads) * w->head_size; }

#define NULL_BASE ((char *)64)

static void *bump_alloc(char **cursor, index_t bytes) {
    void *start = *cursor;
    *cursor += (bytes + 63) / 64 * 64;
    return start;
}

/* Carves the workspace out of memory from `cursor` on; returns its end. tokens: of all sequences; queried: those whose output is
 * needed; length: of a sequence, 0 if attention is computed elsewhere; backward: include the backward pass. */
static char *carve(layer_workspace *r, char *cursor, const layer *w, index_t tokens, index_t queried, index_t length,
                   index_t backward, index_t threads) {
    index_t h = hidden_size(w), intermediate_size = w->projections[GATE].out_features, attn_size = w->projections[O].in_features,
            token_bytes = tokens * sizeof(scalar), queried_bytes = queried * sizeof(scalar);
    memset(r, 0, sizeof *r);
    r->normalized = bump_alloc(&cursor, token_bytes * h);
    r->inverse_rms[0] = bump_alloc(&cursor, tokens * sizeof(float));
    r->inverse_rms[1] = bump_alloc(&cursor, queried * sizeof(float));
    r->residual_mid = bump_alloc(&cursor, queried_bytes * h);
    r->gate = bump_alloc(&cursor, queried_bytes * intermediate_size);
    r->up = bump_alloc(&cursor, queried_bytes * intermediate_size);
    r->gated = bump_alloc(&cursor, queried_bytes * intermediate_size);
    for (int p = 0; p < PROJECTION_COUNT; p++)
        r->low_rank[p] = bump_alloc(&cursor, (p < O ? token_bytes : queried_bytes) * w->projections[p].padded_rank);
    if (!length) return cursor;
    r->qkv = bump_alloc(&cursor, token_bytes * qkv_size(w));
    r->attn_output = bump_alloc(&cursor, queried_bytes * attn_size);
    r->residual_grad = bump_alloc(&cursor, token_bytes * h);
    r->attention_workspace = bump_alloc(&cursor, threads * attention_workspace_size(length, w->head_size) * sizeof(float));
    if (!backward) return cursor;
    r->normalized2 = bump_alloc(&cursor, queried_bytes * h);
    r->d_gate = bump_alloc(&cursor, queried_bytes * intermediate_size);
    r->d_up = bump_alloc(&cursor, queried_bytes * intermediate_size);
    r->d_gated = bump_alloc(&cursor, queried_bytes * intermediate_size);
    r->d_normalized = bump_alloc(&cursor, token_bytes * h);
    r->d_residual_mid = bump_alloc(&cursor, queried_bytes * h);
    r->d_attn_output = bump_alloc(&cursor, queried_bytes * attn_size);
    r->d_qkv = bump_alloc(&cursor, token_bytes * qkv_size(w));
    for (int p = 0; p < PROJECTION_COUNT; p++) {
        r->low_rank_grad[p] = bump_alloc(&cursor, (p < O ? token_bytes : queried_bytes) * w->projections[p].padded_rank);
        index_t needed = grad_workspace_size(length, w->projections[p].rank);
        r->narrow_copy_size = needed > r->narrow_copy_size ? needed : r->narrow_copy_size;
    }
    r->narrow_copy = bump_alloc(&cursor, threads * r->narrow_copy_size * sizeof(scalar));
    return cursor;
}

/* low_rank = x · A^T, if there is an update. */
static void lora_down(const projection *p, const scalar *x, scalar *low_rank, index_t rows, index_t threads) {
    linear_job j = {.operands = {{x, p->lora_a, p->in_features, p->in_features}},
                    .count = 1,
                    .out = low_rank,
                    .rows = rows,
                    .width = p->padded_rank,
                    .out_stride = p->padded_rank};
    if (p->padded_rank) linear(&j, threads);
}

static void project(const projection *p, const scalar *x, scalar *low_rank, const scalar *bias, const scalar *addend, scalar *out,
                    index_t out_stride, index_t rows, index_t threads) {
    linear_job j = {
        .operands = {{x, p->weight, p->in_features, p->in_features}, {low_rank, p->lora_b, p->padded_rank, p->padded_rank}},
        .count = p->padded_rank ? 2 : 1,
        .bias = bias,
        .addend = addend,
        .out = out,
        .rows = rows,
        .width = p->out_features,
        .out_stride = out_stride};
    lora_down(p, x, low_rank, rows, threads);
    linear(&j, threads);
}

/* low_rank = grad_output · s · B, if there is an update. */
static void lora_down_backward(const projection *p, const scalar *grad_output, index_t grad_stride, scalar *low_rank,
                               index_t rows, index_t threads) {
    linear_job j = {.operands = {{grad_output, p->lora_b_t, grad_stride, p->out_features}},
                    .count = 1,
                    .out = low_rank,
                    .rows = rows,
                    .width = p->padded_rank,
                    .out_stride = p->padded_rank};
    if (p->padded_rank) linear(&j, threads);
}

/* Adds this projection's contribution to the gradient of its input. */
static void add_backward_operands(linear_job *j, const projection *p, const scalar *grad_output, index_t grad_stride,
                                  const scalar *low_rank) {
    j->operands[j->count++] = (operand){grad_output, p->weight_t, grad_stride, p->out_features};
    if (p->padded_rank) j->operands[j->count++] = (operand){low_rank, p->lora_a_t, p->padded_rank, p->padded_rank};
}

static linear_job grad_job(scalar *out, index_t rows, index_t width) {
    return (linear_job){.out = out, .rows = rows, .width = width, .out_stride = width};
}

/* q, k and v of each token, before RoPE. */
static void qkv_projection(const layer *w, const layer_workspace *r, const scalar *x, scalar *qkv, index_t rows,
                           index_t threads) {
    rms_norm(x, w->norms[0], r->normalized, r->inverse_rms[0], rows, hidden_size(w), w->eps[0], threads);
    index_t column = 0;
    for (int p = Q; p <= V; p++) {
        project(&w->projections[p], r->normalized, r->low_rank[p], w->bias ? w->bias + column : NULL, NULL, qkv + column,
                qkv_size(w), rows, threads);
        column += w->projections[p].out_features;
    }
}

/* From the attention output to gate and up; `normalized` receives the result of the second norm. */
static void attn_output_to_gate(const layer *w, const layer_workspace *r, const scalar *x, const scalar *attn_output,
                                scalar *normalized, index_t rows, index_t threads) {
    project(&w->projections[O], attn_output, r->low_rank[O], NULL, x, r->residual_mid, hidden_size(w), rows, threads);
    rms_norm(r->residual_mid, w->norms[1], normalized, r->inverse_rms[1], rows, hidden_size(w), w->eps[1], threads);
    project(&w->projections[GATE], normalized, r->low_rank[GATE], NULL, NULL, r->gate, w->projections[GATE].out_features, rows,
            threads);
    project(&w->projections[UP], normalized, r->low_rank[UP], NULL, NULL, r->up, w->projections[UP].out_features, rows, threads);
}

static void post_attention(const layer *w, const layer_workspace *r, const scalar *x, const scalar *attn_output, scalar *out,
                           index_t rows, index_t threads) {
    attn_output_to_gate(w, r, x, attn_output, r->normalized, rows, threads);
    swiglu(r->gate, r->up, r->gated, rows * w->projections[GATE].out_features, threads);
    project(&w->projections[DOWN], r->gated, r->low_rank[DOWN], NULL, r->residual_mid, out, hidden_size(w), rows, threads);
}

/* Bytes of working memory for single tokens. */
index_t token_workspace_bytes(const layer *w, index_t rows) {
    layer_workspace r;
    return carve(&r, NULL_BASE, w, rows, rows, 0, 0, 0) - NULL_BASE;
}

/* q, k and v (rows, qkv_size) of tokens x (rows, hidden_size). */
void layer_qkv_projection(const layer *w, const scalar *x, scalar *qkv, char *memory, index_t rows, index_t threads) {
    layer_workspace r;
    carve(&r, memory, w, rows, rows, 0, 0, 0);
    qkv_projection(w, &r, x, qkv, rows, threads);
}

/* The layer's output for tokens x (rows, hidden_size), given their attention output. */
void layer_post_attention(const layer *w, const scalar *x, const scalar *attn_output, scalar *out, char *memory, index_t rows,
                          index_t threads) {
    layer_workspace r;
    carve(&r, memory, w, rows, rows, 0, 0, 0);
    post_attention(w, &r, x, attn_output, out, rows, threads);
}

/* ---------------------------------------------------------------------------------------------------- whole sequences */

/* chunk_bytes: working memory of a chunk; inner_threads: threads that share a chunk; grads_per_sequence: see layer_grad_count. */
typedef struct {
    const layer *w;
    const scalar *x, *cos, *sin, *grad_output;
    scalar *out, *attn_output, *d_x;
    float *lora_grads;
    char *memory;
    index_t sequences, length, start_pos, rope_stride, chunks, chunk_bytes, inner_threads, grads_per_sequence;
} sequences_job;

/* Number of chunks of sequences: few enough that re-reading the weights for each costs no more than the intermediate results, and
 * enough for all threads. */
static index_t chunk_count(const layer *w, index_t sequences, index_t length, index_t threads) {
    index_t weights = 0, activations = 3 * hidden_size(w) + qkv_size(w) + 3 * w->projections[GATE].out_features;
    for (int p = 0; p < PROJECTION_COUNT; p++) weights += w->projections[p].in_features * w->projections[p].out_features;
    if (sequences < threads) return 1;
    index_t chunks = sequences * length * activations / weights + 1;
    chunks = (chunks + threads - 1) / threads * threads;
    return chunks < sequences ? chunks : sequences;
}

/* Bytes of working memory of a chunk. With fewer sequences than threads, all threads share one chunk. */
static index_t chunk_workspace_bytes(const layer *w, index_t sequences, index_t length, index_t backward, index_t threads) {
    layer_workspace r;
    index_t chunks = chunk_count(w, sequences, length, threads), tokens = (sequences + chunks - 1) / chunks * length;
    return carve(&r, NULL_BASE, w, tokens, tokens, length, backward, sequences < threads ? threads : 1) - NULL_BASE;
}

index_t layer_workspace_bytes(const layer *w, index_t sequences, index_t length, index_t backward, index_t threads) {
    return chunk_workspace_bytes(w, sequences, length, backward, threads) * (sequences < threads ? 1 : threads);
}

static void dispatch(task_fn run, sequences_job *j, index_t backward, index_t threads) {
    j->chunks = chunk_count(j->w, j->sequences, j->length, threads);
    j->chunk_bytes = chunk_workspace_bytes(j->w, j->sequences, j->length, backward, threads);
    j->inner_threads = j->sequences < threads ? threads : 1;
    parallel_for(run, j, j->chunks, j->sequences * j->length * hidden_size(j->w) * hidden_size(j->w), threads);
}

/* A chunk of sequences, from sequence `start` on. */
typedef struct {
    index_t start, sequences, tokens, queried;
    const scalar *x, *cos, *sin;
    scalar *attn_output;
} chunk;

static chunk chunk_at(const sequences_job *j, layer_workspace *r, index_t item, index_t thread, index_t backward) {
    const layer *w = j->w;
    chunk p = {.start = j->sequences * item / j->chunks};
    p.sequences = j->sequences * (item + 1) / j->chunks - p.start;
    p.tokens = p.sequences * j->length;
    p.queried = p.sequences * (j->length - j->start_pos);
    carve(r, j->memory + thread * j->chunk_bytes, w, p.tokens, p.queried, j->length, backward, j->inner_threads);
    p.x = j->x + p.start * j->length * hidden_size(w);
    p.cos = j->cos + p.start * j->rope_stride;
    p.sin = j->sin + p.start * j->rope_stride;
    p.attn_output =
        j->attn_output ? j->attn_output + p.start * (j->length - j->start_pos) * w->projections[O].in_features : r->attn_output;
    return p;
}

/* The layer's input at the tokens whose output is needed. */
static const scalar *queried_rows(const sequences_job *j, const chunk *p, const layer_workspace *r) {
    index_t h = hidden_size(j->w), queried = j->length - j->start_pos;
    if (!j->start_pos) return p->x;
    for (index_t t = 0; t < p->sequences; t++)
        memcpy(r->residual_grad + t * queried * h, p->x + (t * j->length + j->start_pos) * h, queried * h * sizeof(scalar));
    return r->residual_grad;
}

static void forward_task(const void *data, index_t begin, index_t end, index_t thread) {
    const sequences_job *j = data;
    const layer *w = j->w;
    for (index_t item = begin; item < end; item++) {
        layer_workspace r;
        chunk p = chunk_at(j, &r, item, thread, 0);
        qkv_projection(w, &r, p.x, r.qkv, p.tokens, j->inner_threads);
        causal_attention(r.qkv, p.cos, p.sin, p.attn_output, r.attention_workspace, p.sequences, j->length, j->start_pos,
                         w->heads, w->kv_heads, w->head_size, j->rope_stride, w->softmax_scale, j->inner_threads);
        scalar *out = j->out + p.start * (j->length - j->start_pos) * hidden_size(w);
        post_attention(w, &r, queried_rows(j, &p, &r), p.attn_output, out, p.queried, j->inner_threads);
    }
}

/* out (sequences · (length - start_pos), hidden_size) of x (sequences · length, hidden_size). attn_output: saved for the backward
 * pass, or NULL. memory: layer_workspace_bytes bytes. */
void layer_forward(const layer *w, const scalar *x, const scalar *cos, const scalar *sin, scalar *out, scalar *attn_output,
                   char *memory, index_t sequences, index_t length, index_t start_pos, index_t rope_stride, index_t threads) {
    sequences_job j = {.w = w,
                       .x = x,
                       .cos = cos,
                       .sin = sin,
                       .out = out,
                       .attn_output = attn_output,
                       .memory = memory,
                       .sequences = sequences,
                       .length = length,
                       .start_pos = start_pos,
                       .rope_stride = rope_stride};
    dispatch(forward_task, &j, 0, threads);
}

/* Gradients of one LoRA update for each sequence: of A from the input x, of B from grad_output. */
typedef struct {
    const projection *projection;
    const scalar *x, *grad_output, *low_rank, *low_rank_grad;
    scalar *narrow_copy;
    float *grads, scale;
    index_t rows, grad_stride, narrow_copy_size, grads_per_sequence;
} lora_grad_job;

static void lora_grad_task(const void *data, index_t begin, index_t end, index_t thread) {
    const lora_grad_job *j = data;
    const projection *p = j->projection;
    scalar *narrow_copy = j->narrow_copy + thread * j->narrow_copy_size;
    for (index_t t = begin; t < end; t++) {
        index_t row = t * j->rows;
        float *a = j->grads + t * j->grads_per_sequence, *b = a + p->rank * p->in_features;
        outer_product_grad(a, j->low_rank_grad + row * p->padded_rank, p->padded_rank, j->x + row * p->in_features,
                           p->in_features, j->rows, p->rank, p->in_features, 1, 0, narrow_copy);
        outer_product_grad(b, j->low_rank + row * p->padded_rank, p->padded_rank, j->grad_output + row * j->grad_stride,
                           j->grad_stride, j->rows, p->rank, p->out_features, j->scale, 1, narrow_copy);
    }
}

static void compute_lora_grads(const sequences_job *j, const chunk *p, const layer_workspace *r, int proj_index, const scalar *x,
                               const scalar *grad_output, index_t grad_stride) {
    const projection *proj = &j->w->projections[proj_index];
    if (!proj->padded_rank) return;
    index_t offset = 0;
    for (int q = 0; q < proj_index; q++)
        offset += j->w->projections[q].rank * (j->w->projections[q].in_features + j->w->projections[q].out_features);
    lora_grad_job s = {.projection = proj,
                       .x = x,
                       .grad_output = grad_output,
                       .low_rank = r->low_rank[proj_index],
                       .low_rank_grad = r->low_rank_grad[proj_index],
                       .narrow_copy = r->narrow_copy,
                       .grads = j->lora_grads + p->start * j->grads_per_sequence + offset,
                       .scale = j->w->scale,
                       .rows = proj_index < O ? j->length : j->length - j->start_pos,
                       .grad_stride = grad_stride,
                       .narrow_copy_size = r->narrow_copy_size,
                       .grads_per_sequence = j->grads_per_sequence};
    parallel_for(lora_grad_task, &s, p->sequences, s.rows * (proj->in_features + proj->out_features), j->inner_threads);
}

static void backward_task(const void *data, index_t begin, index_t end, index_t thread) {
    const sequences_job *j = data;
    const layer *w = j->w;
    index_t h = hidden_size(w), threads = j->inner_threads, queried = j->length - j->start_pos;
    const projection *down = &w->projections[DOWN], *o = &w->projections[O];
    for (index_t item = begin; item < end; item++) {
        layer_workspace r;
        chunk p = chunk_at(j, &r, item, thread, 1);
        const scalar *grad_output = j->grad_output + p.start * queried * h;
        qkv_projection(w, &r, p.x, r.qkv, p.tokens, threads);
        attn_output_to_gate(w, &r, queried_rows(j, &p, &r), p.attn_output, r.normalized2, p.queried, threads);

        linear_job gated_job = grad_job(r.d_gated, p.queried, down->in_features),
                   normalized_job = grad_job(r.d_normalized, p.queried, h);
        lora_down_backward(down, grad_output, h, r.low_rank_grad[DOWN], p.queried, threads);
        add_backward_operands(&gated_job, down, grad_output, h, r.low_rank_grad[DOWN]);
        linear(&gated_job, threads);
        swiglu_backward(r.d_gated, r.gate, r.up, r.d_gate, r.d_up, r.gated, p.queried * down->in_features, threads);
        lora_down(down, r.gated, r.low_rank[DOWN], p.queried, threads);
        compute_lora_grads(j, &p, &r, DOWN, r.gated, grad_output, h);

        const scalar *unit_grads[] = {r.d_gate, r.d_up};
        for (int q = GATE; q <= UP; q++) {
            lora_down_backward(&w->projections[q], unit_grads[q - GATE], down->in_features, r.low_rank_grad[q], p.queried,
                               threads);
            add_backward_operands(&normalized_job, &w->projections[q], unit_grads[q - GATE], down->in_features,
                                  r.low_rank_grad[q]);
            compute_lora_grads(j, &p, &r, q, r.normalized2, unit_grads[q - GATE], down->in_features);
        }
        linear(&normalized_job, threads);
        rms_norm_backward(r.d_normalized, r.residual_mid, r.inverse_rms[1], w->norms[1], grad_output, r.d_residual_mid,
                          r.normalized2, p.queried, h, threads);

        linear_job attn_output_job = grad_job(r.d_attn_output, p.queried, o->in_features),
                   input_job = grad_job(r.d_normalized, p.tokens, h);
        lora_down_backward(o, r.d_residual_mid, h, r.low_rank_grad[O], p.queried, threads);
        add_backward_operands(&attn_output_job, o, r.d_residual_mid, h, r.low_rank_grad[O]);
        linear(&attn_output_job, threads);
        compute_lora_grads(j, &p, &r, O, p.attn_output, r.d_residual_mid, h);

        causal_attention_backward(r.d_attn_output, r.qkv, p.cos, p.sin, r.d_qkv, r.attention_workspace, p.sequences, j->length,
                                  j->start_pos, w->heads, w->kv_heads, w->head_size, j->rope_stride, w->softmax_scale, threads);
        const scalar *column = r.d_qkv;
        for (int q = Q; q <= V; column += w->projections[q++].out_features) {
            lora_down_backward(&w->projections[q], column, qkv_size(w), r.low_rank_grad[q], p.tokens, threads);
            add_backward_operands(&input_job, &w->projections[q], column, qkv_size(w), r.low_rank_grad[q]);
            compute_lora_grads(j, &p, &r, q, r.normalized, column, qkv_size(w));
        }
        if (!j->d_x) continue;
        linear(&input_job, threads);
        memset(r.residual_grad, 0, p.tokens * h * sizeof(scalar));
        for (index_t t = 0; t < p.sequences; t++)
            memcpy(r.residual_grad + (t * j->length + j->start_pos) * h, r.d_residual_mid + t * queried * h,
                   queried * h * sizeof(scalar));
        rms_norm_backward(r.d_normalized, p.x, r.inverse_rms[0], w->norms[0], r.residual_grad, j->d_x + p.start * j->length * h,
                          r.normalized, p.tokens, h, threads);
    }
}

static void sum_sequence_grads(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const sequences_job *j = data;
    for (index_t t = 1; t < j->sequences; t++)
#pragma omp simd
        for (index_t i = begin; i < end; i++) j->lora_grads[i] += j->lora_grads[t * j->grads_per_sequence + i];
}

/* Elements of all LoRA gradients: A and B of q, k, v, o, gate, up and down in turn. */
index_t layer_grad_count(const layer *w) {
    index_t count = 0;
    for (int p = 0; p < PROJECTION_COUNT; p++)
        count += w->projections[p].rank * (w->projections[p].in_features + w->projections[p].out_features);
    return count;
}

/* Backward pass: d_x (sequences · length, hidden_size), or NULL if not needed. lora_grads: layer_grad_count elements per sequence;
 * those of the first sequence receive the sum. */
void layer_backward(const layer *w, const scalar *x, scalar *attn_output, const scalar *grad_output, const scalar *cos,
                    const scalar *sin, scalar *d_x, float *lora_grads, char *memory, index_t sequences, index_t length,
                    index_t start_pos, index_t rope_stride, index_t threads) {
    sequences_job j = {.w = w,
                       .x = x,
                       .cos = cos,
                       .sin = sin,
                       .grad_output = grad_output,
                       .attn_output = attn_output,
                       .d_x = d_x,
                       .lora_grads = lora_grads,
                       .memory = memory,
                       .sequences = sequences,
                       .length = length,
                       .start_pos = start_pos,
                       .rope_stride = rope_stride,
                       .grads_per_sequence = layer_grad_count(w)};
    dispatch(backward_task, &j, 1, threads);
    parallel_for(sum_sequence_grads, &j, j.grads_per_sequence, sequences, threads);
}

#endif
