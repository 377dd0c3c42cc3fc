/* Matrix products of bfloat16 with weights in a tiled layout, on processors that multiply bfloat16 (amx_matmul.c). */

#ifndef AMX_MATMUL_H
#define AMX_MATMUL_H

#include "simd.h"

#if defined BFLOAT16 && defined __AVX512BF16__
#define HAS_BF16_MATMUL
#endif

#define TILE_WIDTH 16                       /* outputs of a tile */
#define TILE_DEPTH 32                       /* inputs of a tile */
#define TILE_SIZE (TILE_WIDTH * TILE_DEPTH) /* elements of a tile */
#define MAX_OPERANDS 6

/* Inputs x, whose rows are row_stride apart, and the tiled weight (width, depth) that multiplies them. Tiles of the same 16 outputs
 * follow one another in the order of their inputs. A tile holds inputs 2 i and 2 i + 1 as a pair, for 16 outputs side by side.
 * Outputs are padded with zeros to a multiple of two tiles. depth is a multiple of TILE_DEPTH. */
typedef struct {
    const scalar *x, *weight;
    index_t row_stride, depth;
} operand;

/* out (rows, width), with row stride out_stride: the sum of x · weight^T over the operands, plus bias (width,) and addend
 * (rows, width) unless they are NULL. Sums are float32 and are rounded once. */
typedef struct {
    operand operands[MAX_OPERANDS];
    index_t count;
    const scalar *bias, *addend;
    scalar *out;
    index_t rows, width, out_stride;
} linear_job;

void linear(const linear_job *j, index_t threads);

/* dst (rank, width), or (width, rank) if transposed, = scale · narrow^T · wide. narrow: (rows, rank), wide: (rows, width), with the
 * given row strides; width is a multiple of TILE_WIDTH. workspace: grad_workspace_size(rows, rank) elements. */
void outer_product_grad(float *dst, const scalar *narrow, index_t narrow_stride, const scalar *wide, index_t wide_stride,
                        index_t rows, index_t rank, index_t width, float scale, int transposed, scalar *workspace);
index_t grad_workspace_size(index_t rows, index_t rank);

#endif
