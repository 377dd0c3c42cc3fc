/* Products with weights that are laid out beforehand: by tiles (AMX), or by vectors where there are none. */

#include "amx_matmul.h"

#ifdef MULTIPLIES

#include <immintrin.h>

#define NEAR (1 << 18) /* bytes of weights that stay in a core's cache while rows pass by */
#define SIDE (2 * EDGE) /* rows, and outputs, of a block */

typedef float block[SIDE][SIDE] __attribute__((aligned(64)));

static inline size smaller(size a, size b) { return a < b ? a : b; }

/* How many pieces of `each` hold so many. */
static inline size pieces(size count, size each) { return (count + each - 1) / each; }

#ifdef TILES

int by_tiles(void) { return 1; }

/* Tiles 0 to 3 are the block's sums, 4 and 5 its rows, 6 and 7 the weights of its outputs. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* Compilers do not know that tiles read memory, so what was written is written before this and not later. */
#define IS_WRITTEN __asm__ volatile("" ::: "memory")

static void begin_block(size rows, size *shaped) {
    if (rows == *shaped) return;
    tile_shapes shapes = {.palette = 1};
    size first = smaller(rows, EDGE), second = rows > EDGE ? rows - EDGE : EDGE;
    const size each[] = {first, first, second, second, first, second, EDGE, EDGE};
    for (size t = 0; t < 8; t++) {
        shapes.bytes[t] = 4 * EDGE;
        shapes.rows[t] = (uint8_t)each[t];
    }
    IS_WRITTEN;
    _tile_loadconfig(&shapes);
    *shaped = rows;
}

static void end_blocks(void) { _tile_release(); }

static void sum_block(block sums, const linear_job *j, size row, size column, size rows) {
    int both = rows > EDGE;
    IS_WRITTEN;
    _tile_zero(0);
    _tile_zero(1);
    if (both) {
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size f = 0; f < j->count; f++) {
        const factor *of = &j->of[f];
        const number *x = of->x + row * of->apart, *weight = of->weight + column * of->depth, *next = weight + EDGE * of->depth;
        size step = of->apart * sizeof(number);
        for (size k = 0; k < of->depth; k += DEEP, x += DEEP, weight += SQUARE, next += SQUARE) {
            _tile_loadd(4, x, step);
            _tile_loadd(6, weight, 4 * EDGE);
            _tile_loadd(7, next, 4 * EDGE);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (both) {
                _tile_loadd(5, x + EDGE * of->apart, step);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + EDGE, sizeof sums[0]);
    if (both) {
        _tile_stored(2, sums[EDGE], sizeof sums[0]);
        _tile_stored(3, sums[EDGE] + EDGE, sizeof sums[0]);
    }
}

/* sums (EDGE, EDGE), added to = few (EDGE, DEEP) · square. */
static void add_square(float *sums, const number *few, const number *square) {
    IS_WRITTEN;
    _tile_loadd(0, sums, 4 * EDGE);
    _tile_loadd(4, few, 4 * EDGE);
    _tile_loadd(6, square, 4 * EDGE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, sums, 4 * EDGE);
}

#else

static void begin_block(size rows, size *shaped) { *shaped = rows; }
static void end_blocks(void) {}

/* Inputs 2 i and 2 i + 1 of a row, in every lane. */
static inline __m512bh both_of(const number *x) {
    int32_t bits;
    memcpy(&bits, x, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
}

static inline __m512bh weights_at(const number *p) { return (__m512bh)_mm512_loadu_si512(p); }

#define ROWS_OF_BLOCK(count)                                                                                                  \
    {                                                                                                                         \
        __m512 left[count], right[count];                                                                                     \
        for (size t = 0; t < count; t++) left[t] = _mm512_load_ps(sums[i + t]), right[t] = _mm512_load_ps(sums[i + t] + EDGE); \
        for (size k = 0; k < of->depth; k += 2) {                                                                             \
            __m512bh one = weights_at(weight + k * EDGE), two = weights_at(next + k * EDGE);                                  \
            for (size t = 0; t < count; t++) {                                                                                \
                __m512bh pair = both_of(x + (i + t) * of->apart + k);                                                         \
                left[t] = _mm512_dpbf16_ps(left[t], pair, one), right[t] = _mm512_dpbf16_ps(right[t], pair, two);             \
            }                                                                                                                 \
        }                                                                                                                     \
        for (size t = 0; t < count; t++) _mm512_store_ps(sums[i + t], left[t]), _mm512_store_ps(sums[i + t] + EDGE, right[t]); \
        i += count;                                                                                                           \
    }

static void sum_block(block sums, const linear_job *j, size row, size column, size rows) {
    memset(sums, 0, rows * sizeof sums[0]);
    for (size f = 0; f < j->count; f++) {
        const factor *of = &j->of[f];
        const number *x = of->x + row * of->apart, *weight = of->weight + column * of->depth, *next = weight + EDGE * of->depth;
        size i = 0;
        while (i + TILE <= rows) ROWS_OF_BLOCK(TILE)
        while (i < rows) ROWS_OF_BLOCK(1)
    }
}

static void add_square(float *sums, const number *few, const number *square) {
    for (size i = 0; i < EDGE; i += TILE) {
        __m512 each[TILE];
        for (size t = 0; t < TILE; t++) each[t] = _mm512_loadu_ps(sums + (i + t) * EDGE);
        for (size k = 0; k < DEEP; k += 2) {
            __m512bh one = weights_at(square + k * EDGE);
            for (size t = 0; t < TILE; t++) each[t] = _mm512_dpbf16_ps(each[t], both_of(few + (i + t) * DEEP + k), one);
        }
        for (size t = 0; t < TILE; t++) _mm512_storeu_ps(sums + (i + t) * EDGE, each[t]);
    }
}

#endif

static void put_block(const linear_job *j, block sums, size row, size column, size rows) {
    for (size i = 0; i < rows; i++)
        for (size c = 0; c < smaller(SIDE, j->width - column); c += WIDE) {
            size at = column + c, left = j->width - at;
            const float *sum = sums[i] + c;
            const number *bias = j->bias ? j->bias + at : NULL, *onto = j->onto ? j->onto + (row + i) * j->width + at : NULL;
            number *out = j->out + (row + i) * j->apart + at;
            if (left >= WIDE) {
                wide all = *(const wide *)sum;
                if (bias) all += wide_at(bias);
                if (onto) all += wide_at(onto);
                put_wide(out, all);
            } else
                for (size w = 0; w < left; w++)
                    out[w] = narrowed(sum[w] + (bias ? widened(bias[w]) : 0) + (onto ? widened(onto[w]) : 0));
        }
}

/* Blocks of rows and of outputs, each from one to another. */
static void blocks(const linear_job *j, size from_row, size to_row, size from, size to) {
    block sums;
    size shaped = 0;
    for (size r = from_row; r < to_row; r++) {
        size row = r * SIDE, rows = smaller(SIDE, j->rows - row);
        begin_block(rows, &shaped);
        for (size c = from; c < to; c++) {
            sum_block(sums, j, row, c * SIDE, rows);
            put_block(j, sums, row, c * SIDE, rows);
        }
    }
}

static void blocks_of_rows(const void *data, size from, size to, size thread) {
    (void)thread;
    const linear_job *j = data;
    size depth = 0, all = pieces(j->width, SIDE);
    for (size f = 0; f < j->count; f++) depth += j->of[f].depth;
    size some = NEAR / (depth * SIDE * sizeof(number)) + 1;
    for (size c = 0; c < all; c += some) blocks(j, from, to, c, smaller(c + some, all));
    end_blocks();
}

static void blocks_of_outputs(const void *data, size from, size to, size thread) {
    (void)thread;
    const linear_job *j = data;
    blocks(j, 0, pieces(j->rows, SIDE), from, to);
    end_blocks();
}

void linear(const linear_job *j, size threads) {
    size rows = pieces(j->rows, SIDE), outputs = pieces(j->width, SIDE), each = SIDE * j->of[0].depth;
    if (threads == 1 || rows >= 4 * threads)
        share(blocks_of_rows, j, rows, outputs * each, threads);
    else
        share(blocks_of_outputs, j, outputs, rows * each, threads);
}

/* x · weight^T + bias for tensors. */
void linear_rows(const number *x, const number *weight, const number *bias, number *out, size rows, size depth, size width,
                 size threads) {
    linear_job j = {.of = {{x, weight, depth, depth}}, .count = 1, .bias = bias, .out = out, .rows = rows, .width = width, .apart = width};
    linear(&j, threads);
}

/* ------------------------------------------------------------------------------------------------------------- slopes */

size slopes_room(size rows, size rank) { return (pieces(rows, DEEP) * pieces(rank, EDGE) + 1) * SQUARE; }

/* Rows `row` on of 16 columns as a square. */
static void square_of(number *to, const number *from, size apart, size row, size rows) {
    const uint16_t pairs[SIDE] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                  8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i order = _mm512_loadu_si512(pairs);
    const __m256i none = _mm256_setzero_si256();
    for (size k = 0; k < DEEP; k += 2) {
        const number *at = from + (row + k) * apart;
        __m256i one = row + k < rows ? _mm256_loadu_si256((const void *)at) : none;
        __m256i two = row + k + 1 < rows ? _mm256_loadu_si256((const void *)(at + apart)) : none;
        __m512i both = _mm512_permutex2var_epi16(_mm512_castsi256_si512(one), order, _mm512_castsi256_si512(two));
        _mm512_storeu_si512(to + k * EDGE, both);
    }
}

void slopes(float *to, const number *few, size apart_few, const number *many, size apart_many, size rows, size rank, size width,
            float by, int across, number *room) {
    size deep = pieces(rows, DEEP), ranks = pieces(rank, EDGE), shaped = 0;
    number *square = room + deep * ranks * SQUARE;
    memset(room, 0, deep * ranks * SQUARE * sizeof(number));
    for (size t = 0; t < rows; t++)
        for (size r = 0; r < rank; r++)
            room[((r / EDGE * deep + t / DEEP) * EDGE + r % EDGE) * DEEP + t % DEEP] = few[t * apart_few + r];
    begin_block(SIDE, &shaped);
    for (size column = 0; column < width; column += EDGE)
        for (size r = 0; r < ranks; r++) {
            float sums[SQUARE / 2] __attribute__((aligned(64))) = {0};
            for (size t = 0; t < deep; t++) {
                square_of(square, many + column, apart_many, t * DEEP, rows);
                add_square(sums, room + (r * deep + t) * SQUARE, square);
            }
            for (size i = 0; i < smaller(EDGE, rank - r * EDGE); i++)
                for (size c = 0; c < EDGE; c++) {
                    size low = r * EDGE + i, one = column + c;
                    to[across ? one * rank + low : low * width + one] = by * sums[i * EDGE + c];
                }
        }
    end_blocks();
}

/* ------------------------------------------------------------------------------------------------------------ layouts */

/* One number of a weight (out, in) that is laid out. */
static inline number *place(number *to, size depth, size out, size in) {
    return to + out / EDGE * EDGE * depth + in / DEEP * SQUARE + in % DEEP / 2 * SIDE + out % EDGE * 2 + in % 2;
}

/* An update by · B · A, A (rank, in) and B (out, rank), laid out as what multiplies x on the way forward, A and by · B, and on the
 * way back, (by · B)^T and A^T. `padded` is rank, up to a multiple of DEEP; what lies behind the rank stays as it is. */
void lay_update(const float *a, const float *b, number *narrow, number *wide_, number *narrow_back, number *wide_back, size in,
                size out, size rank, size padded, float by) {
    for (size r = 0; r < rank; r++) {
        for (size i = 0; i < in; i++) *place(narrow, in, r, i) = *place(wide_back, padded, i, r) = narrowed(a[r * in + i]);
        for (size o = 0; o < out; o++) *place(wide_, padded, o, r) = *place(narrow_back, out, r, o) = narrowed(by * b[o * rank + r]);
    }
}

#endif
