/* Matrix products with tiled weights, by AMX tiles, or by AVX-512 vectors without USE_AMX. */

#include "amx_matmul.h"

#ifdef HAS_BF16_MATMUL

#include <immintrin.h>

#define CACHE_BYTES (1 << 18)        /* weights that stay in a core's cache while all rows are multiplied */
#define BLOCK_WIDTH (2 * TILE_WIDTH) /* rows, and outputs, of a block */

typedef float block[BLOCK_WIDTH][BLOCK_WIDTH] __attribute__((aligned(64)));

static inline index_t min(index_t a, index_t b) { return a < b ? a : b; }

/* Chunks needed for `count` items. */
static inline index_t ceil_div(index_t count, index_t chunk) { return (count + chunk - 1) / chunk; }

#ifdef USE_AMX

int uses_amx(void) { return 1; }

/* Tiles 0 to 3 accumulate the block, 4 and 5 hold its rows, 6 and 7 the weights of its outputs. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

/* Compilers do not know that tile loads read memory: this keeps earlier stores before them. */
#define MEMORY_BARRIER __asm__ volatile("" ::: "memory")

static void configure_tiles(index_t rows, index_t *configured_rows) {
    if (rows == *configured_rows) return;
    tile_config config = {.palette = 1};
    index_t first_rows = min(rows, TILE_WIDTH), second_rows = rows > TILE_WIDTH ? rows - TILE_WIDTH : TILE_WIDTH;
    const index_t tile_rows[] = {first_rows, first_rows,  second_rows, second_rows,
                                 first_rows, second_rows, TILE_WIDTH,  TILE_WIDTH};
    for (index_t t = 0; t < 8; t++) {
        config.bytes[t] = 4 * TILE_WIDTH;
        config.rows[t] = (uint8_t)tile_rows[t];
    }
    MEMORY_BARRIER;
    _tile_loadconfig(&config);
    *configured_rows = rows;
}

static void release_tiles(void) { _tile_release(); }

static void accumulate_block(block sums, const linear_job *j, index_t row, index_t column, index_t rows) {
    int has_second_half = rows > TILE_WIDTH;
    MEMORY_BARRIER;
    _tile_zero(0);
    _tile_zero(1);
    if (has_second_half) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (index_t f = 0; f < j->count; f++) {
        const operand *op = &j->operands[f];
        const scalar *x = op->x + row * op->row_stride, *weight = op->weight + column * op->depth,
                     *next_weight = weight + TILE_WIDTH * op->depth;
        index_t stride_bytes = op->row_stride * sizeof(scalar);
        for (index_t k = 0; k < op->depth; k += TILE_DEPTH, x += TILE_DEPTH, weight += TILE_SIZE, next_weight += TILE_SIZE) {
            _tile_loadd(4, x, stride_bytes);
            _tile_loadd(6, weight, 4 * TILE_WIDTH);
            _tile_loadd(7, next_weight, 4 * TILE_WIDTH);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (has_second_half) {
                _tile_loadd(5, x + TILE_WIDTH * op->row_stride, stride_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + TILE_WIDTH, sizeof sums[0]);
    if (has_second_half) {
        _tile_stored(2, sums[TILE_WIDTH], sizeof sums[0]);
        _tile_stored(3, sums[TILE_WIDTH] + TILE_WIDTH, sizeof sums[0]);
    }
}

/* sums (TILE_WIDTH, TILE_WIDTH) += narrow (TILE_WIDTH, TILE_DEPTH) · tile. */
static void accumulate_tile(float *sums, const scalar *narrow, const scalar *tile) {
    MEMORY_BARRIER;
    _tile_loadd(0, sums, 4 * TILE_WIDTH);
    _tile_loadd(4, narrow, 4 * TILE_WIDTH);
    _tile_loadd(6, tile, 4 * TILE_WIDTH);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, sums, 4 * TILE_WIDTH);
}

#else

static void configure_tiles(index_t rows, index_t *configured_rows) { *configured_rows = rows; }
static void release_tiles(void) {}

/* Inputs 2 i and 2 i + 1 of a row, broadcast to every lane. */
static inline __m512bh load_pair(const scalar *x) {
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

static inline __m512bh load_weights(const scalar *p) { return (__m512bh)_mm512_loadu_si512(p); }

#define ACCUMULATE_ROWS(count)                                                                                                   \
    {                                                                                                                            \
        __m512 left[count], right[count];                                                                                        \
        for (index_t t = 0; t < count; t++)                                                                                      \
            left[t] = _mm512_load_ps(sums[i + t]), right[t] = _mm512_load_ps(sums[i + t] + TILE_WIDTH);                          \
        for (index_t k = 0; k < op->depth; k += 2) {                                                                             \
            __m512bh weights1 = load_weights(weight + k * TILE_WIDTH), weights2 = load_weights(next_weight + k * TILE_WIDTH);    \
            for (index_t t = 0; t < count; t++) {                                                                                \
                __m512bh pair = load_pair(x + (i + t) * op->row_stride + k);                                                     \
                left[t] = _mm512_dpbf16_ps(left[t], pair, weights1), right[t] = _mm512_dpbf16_ps(right[t], pair, weights2);      \
            }                                                                                                                    \
        }                                                                                                                        \
        for (index_t t = 0; t < count; t++)                                                                                      \
            _mm512_store_ps(sums[i + t], left[t]), _mm512_store_ps(sums[i + t] + TILE_WIDTH, right[t]);                          \
        i += count;                                                                                                              \
    }

static void accumulate_block(block sums, const linear_job *j, index_t row, index_t column, index_t rows) {
    memset(sums, 0, rows * sizeof sums[0]);
    for (index_t f = 0; f < j->count; f++) {
        const operand *op = &j->operands[f];
        const scalar *x = op->x + row * op->row_stride, *weight = op->weight + column * op->depth,
                     *next_weight = weight + TILE_WIDTH * op->depth;
        index_t i = 0;
        while (i + ROW_BLOCK <= rows) ACCUMULATE_ROWS(ROW_BLOCK)
        while (i < rows) ACCUMULATE_ROWS(1)
    }
}

static void accumulate_tile(float *sums, const scalar *narrow, const scalar *tile) {
    for (index_t i = 0; i < TILE_WIDTH; i += ROW_BLOCK) {
        __m512 rows[ROW_BLOCK];
        for (index_t t = 0; t < ROW_BLOCK; t++) rows[t] = _mm512_loadu_ps(sums + (i + t) * TILE_WIDTH);
        for (index_t k = 0; k < TILE_DEPTH; k += 2) {
            __m512bh weights = load_weights(tile + k * TILE_WIDTH);
            for (index_t t = 0; t < ROW_BLOCK; t++)
                rows[t] = _mm512_dpbf16_ps(rows[t], load_pair(narrow + (i + t) * TILE_DEPTH + k), weights);
        }
        for (index_t t = 0; t < ROW_BLOCK; t++) _mm512_storeu_ps(sums + (i + t) * TILE_WIDTH, rows[t]);
    }
}

#endif

static void store_block(const linear_job *j, block sums, index_t row, index_t column, index_t rows) {
    for (index_t i = 0; i < rows; i++)
        for (index_t c = 0; c < min(BLOCK_WIDTH, j->width - column); c += VEC_WIDTH) {
            index_t output = column + c, remaining = j->width - output;
            const float *sum = sums[i] + c;
            const scalar *bias = j->bias ? j->bias + output : NULL,
                         *addend = j->addend ? j->addend + (row + i) * j->width + output : NULL;
            scalar *out = j->out + (row + i) * j->out_stride + output;
            if (remaining >= VEC_WIDTH) {
                vec result = *(const vec *)sum;
                if (bias) result += load_vec(bias);
                if (addend) result += load_vec(addend);
                store_vec(out, result);
            } else
                for (index_t lane = 0; lane < remaining; lane++)
                    out[lane] = from_float(sum[lane] + (bias ? to_float(bias[lane]) : 0) + (addend ? to_float(addend[lane]) : 0));
        }
}

/* Computes a range of row blocks and a range of output blocks. */
static void multiply_blocks(const linear_job *j, index_t begin_row, index_t end_row, index_t begin, index_t end) {
    block sums;
    index_t configured_rows = 0;
    for (index_t r = begin_row; r < end_row; r++) {
        index_t row = r * BLOCK_WIDTH, rows = min(BLOCK_WIDTH, j->rows - row);
        configure_tiles(rows, &configured_rows);
        for (index_t c = begin; c < end; c++) {
            accumulate_block(sums, j, row, c * BLOCK_WIDTH, rows);
            store_block(j, sums, row, c * BLOCK_WIDTH, rows);
        }
    }
}

static void rows_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const linear_job *j = data;
    index_t depth = 0, block_count = ceil_div(j->width, BLOCK_WIDTH);
    for (index_t f = 0; f < j->count; f++) depth += j->operands[f].depth;
    index_t chunk = CACHE_BYTES / (depth * BLOCK_WIDTH * sizeof(scalar)) + 1;
    for (index_t c = 0; c < block_count; c += chunk) multiply_blocks(j, begin, end, c, min(c + chunk, block_count));
    release_tiles();
}

static void outputs_task(const void *data, index_t begin, index_t end, index_t thread) {
    (void)thread;
    const linear_job *j = data;
    multiply_blocks(j, 0, ceil_div(j->rows, BLOCK_WIDTH), begin, end);
    release_tiles();
}

void linear(const linear_job *j, index_t threads) {
    index_t rows = ceil_div(j->rows, BLOCK_WIDTH), outputs = ceil_div(j->width, BLOCK_WIDTH),
            cost = BLOCK_WIDTH * j->operands[0].depth;
    if (threads == 1 || rows >= 4 * threads)
        parallel_for(rows_task, j, rows, outputs * cost, threads);
    else
        parallel_for(outputs_task, j, outputs, rows * cost, threads);
}

/* x · weight^T + bias of tensors. */
void tiled_linear(const scalar *x, const scalar *weight, const scalar *bias, scalar *out, index_t rows, index_t depth,
                  index_t width, index_t threads) {
    linear_job j = {.operands = {{x, weight, depth, depth}},
                    .count = 1,
                    .bias = bias,
                    .out = out,
                    .rows = rows,
                    .width = width,
                    .out_stride = width};
    linear(&j, threads);
}

/* ------------------------------------------------------------------------------------------------------------- LoRA grads */

index_t grad_workspace_size(index_t rows, index_t rank) {
    return (ceil_div(rows, TILE_DEPTH) * ceil_div(rank, TILE_WIDTH) + 1) * TILE_SIZE;
}

/* TILE_DEPTH rows of 16 columns, from `row` on, as a tile. */
static void pack_tile(scalar *dst, const scalar *src, index_t row_stride, index_t row, index_t rows) {
    const uint16_t pairs[BLOCK_WIDTH] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                         8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i order = _mm512_loadu_si512(pairs);
    const __m256i zeros = _mm256_setzero_si256();
    for (index_t k = 0; k < TILE_DEPTH; k += 2) {
        const scalar *row_pair = src + (row + k) * row_stride;
        __m256i row1 = row + k < rows ? _mm256_loadu_si256((const void *)row_pair) : zeros;
        __m256i row2 = row + k + 1 < rows ? _mm256_loadu_si256((const void *)(row_pair + row_stride)) : zeros;
        __m512i interleaved = _mm512_permutex2var_epi16(_mm512_castsi256_si512(row1), order, _mm512_castsi256_si512(row2));
        _mm512_storeu_si512(dst + k * TILE_WIDTH, interleaved);
    }
}

void outer_product_grad(float *dst, const scalar *narrow, index_t narrow_stride, const scalar *wide, index_t wide_stride,
                        index_t rows, index_t rank, index_t width, float scale, int transposed, scalar *workspace) {
    index_t depth_tiles = ceil_div(rows, TILE_DEPTH), rank_tiles = ceil_div(rank, TILE_WIDTH), configured_rows = 0;
    scalar *tile = workspace + depth_tiles * rank_tiles * TILE_SIZE;
    memset(workspace, 0, depth_tiles * rank_tiles * TILE_SIZE * sizeof(scalar));
    for (index_t t = 0; t < rows; t++)
        for (index_t r = 0; r < rank; r++)
            workspace[((r / TILE_WIDTH * depth_tiles + t / TILE_DEPTH) * TILE_WIDTH + r % TILE_WIDTH) * TILE_DEPTH +
                      t % TILE_DEPTH] = narrow[t * narrow_stride + r];
    configure_tiles(BLOCK_WIDTH, &configured_rows);
    for (index_t column = 0; column < width; column += TILE_WIDTH)
        for (index_t r = 0; r < rank_tiles; r++) {
            float sums[TILE_SIZE / 2] __attribute__((aligned(64))) = {0};
            for (index_t t = 0; t < depth_tiles; t++) {
                pack_tile(tile, wide + column, wide_stride, t * TILE_DEPTH, rows);
                accumulate_tile(sums, workspace + (r * depth_tiles + t) * TILE_SIZE, tile);
            }
            for (index_t i = 0; i < min(TILE_WIDTH, rank - r * TILE_WIDTH); i++)
                for (index_t c = 0; c < TILE_WIDTH; c++) {
                    index_t rank_index = r * TILE_WIDTH + i, feature = column + c;
                    dst[transposed ? feature * rank + rank_index : rank_index * width + feature] =
                        scale * sums[i * TILE_WIDTH + c];
                }
        }
    release_tiles();
}

/* ------------------------------------------------------------------------------------------------------------ layouts */

/* An element of a tiled weight (out, in). */
static inline scalar *tile_element(scalar *dst, index_t depth, index_t out, index_t in) {
    return dst + out / TILE_WIDTH * TILE_WIDTH * depth + in / TILE_DEPTH * TILE_SIZE + in % TILE_DEPTH / 2 * BLOCK_WIDTH +
           out % TILE_WIDTH * 2 + in % 2;
}

/* Tiles a LoRA update scale · B · A, A (rank, in_features) and B (out_features, rank): A and scale · B for the forward pass,
 * (scale · B)^T and A^T for the backward pass. padded_rank is the rank rounded up to a multiple of TILE_DEPTH; elements beyond the
 * rank are not written. */
void tile_lora(const float *a, const float *b, scalar *lora_a, scalar *lora_b, scalar *lora_b_t, scalar *lora_a_t,
               index_t in_features, index_t out_features, index_t rank, index_t padded_rank, float scale) {
    for (index_t r = 0; r < rank; r++) {
        for (index_t i = 0; i < in_features; i++)
            *tile_element(lora_a, in_features, r, i) = *tile_element(lora_a_t, padded_rank, i, r) =
                from_float(a[r * in_features + i]);
        for (index_t o = 0; o < out_features; o++)
            *tile_element(lora_b, padded_rank, o, r) = *tile_element(lora_b_t, out_features, r, o) =
                from_float(scale * b[o * rank + r]);
    }
}

#endif
