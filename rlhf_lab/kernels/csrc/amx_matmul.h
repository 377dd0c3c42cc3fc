/* Products of bfloat16 with weights that are laid out for them, on processors that multiply bfloat16 (products.c). */

#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "simd.h"

#if defined BFLOAT16 && defined __AVX512BF16__
#define MULTIPLIES
#endif

#define EDGE 16              /* outputs of a square */
#define DEEP 32              /* inputs of a square */
#define SQUARE (EDGE * DEEP) /* its numbers */
#define MOST_FACTORS 6

/* Rows x, `apart` numbers from each other, and the weight (width, depth) that multiplies them, laid out in squares: those of 16
 * outputs behind one another, the next inputs first. Within a square the two numbers of inputs 2 i and 2 i + 1 stand together, 16
 * outputs side by side. Outputs are filled up to a multiple of two edges, with zeros; depth is a multiple of DEEP. */
typedef struct {
    const number *x, *weight;
    size apart, depth;
} factor;

/* out (rows, width), whose rows are `apart` from each other: the sum of all x · weight^T, plus bias (width,) and onto (rows, width)
 * where they are not NULL. Sums are float32 and are rounded once. */
typedef struct {
    factor of[MOST_FACTORS];
    size count;
    const number *bias, *onto;
    number *out;
    size rows, width, apart;
} linear_job;

void linear(const linear_job *j, size threads);

/* to (rank, width), or (width, rank) if it is to be `across`, = by · fewᵀ · many. few: (rows, rank), many: (rows, width), a
 * multiple of EDGE; rows are apart_few and apart_many from each other. room: slopes_room(rows, rank) numbers. */
void slopes(float *to, const number *few, size apart_few, const number *many, size apart_many, size rows, size rank, size width,
            float by, int across, number *room);
size slopes_room(size rows, size rank);

#endif
