/* Causal attention with the rotation of queries and keys by their places in it, of whole texts and of one token more. */

#include "simd.h"

#define BLOCK 16 /* queries of a head computed at once */
#define AHEAD 16 /* keys between the one computed and the one asked for */

typedef struct {
    const number *read, *cos, *sin, *slope;
    number *mixed, *d_read;
    float *room;
    size length, first, heads, groups, of_head, turns;
    float sharp;
} attention_job;

/* A head's numbers of some tokens, (rows, width): rotated by their places unless cos is NULL, times `by`, and 0 behind the head's. */
static void gather(float *to, size width, const number *from, size step, const number *cos, const number *sin, size rows,
                   size of_head, float by) {
    size half = of_head / 2;
    for (size t = 0; t < rows; t++, to += width, from += step) {
        if (cos) {
            const number *c = cos + t * of_head, *s = sin + t * of_head;
#pragma omp simd
            for (size i = 0; i < half; i++) {
                float one = widened(from[i]), other = widened(from[i + half]);
                to[i] = (one * widened(c[i]) + other * widened(s[i])) * by;
                to[i + half] = (other * widened(c[i + half]) + one * widened(s[i + half])) * by;
            }
        } else
#pragma omp simd
            for (size i = 0; i < of_head; i++) to[i] = widened(from[i]);
        for (size i = of_head; i < width; i++) to[i] = 0;
    }
}

/* The way back: what the slopes of gathered numbers, times `by`, are to those before the rotation. */
static void scatter(number *to, size step, const float *from, size width, const number *cos, const number *sin, size rows,
                    size of_head, float by) {
    size half = of_head / 2;
    for (size t = 0; t < rows; t++, to += step, from += width) {
        if (cos) {
            const number *c = cos + t * of_head, *s = sin + t * of_head;
#pragma omp simd
            for (size i = 0; i < half; i++) {
                float one = from[i], other = from[i + half];
                to[i] = narrowed((one * widened(c[i]) + other * widened(s[i + half])) * by);
                to[i + half] = narrowed((other * widened(c[i + half]) + one * widened(s[i])) * by);
            }
        } else
#pragma omp simd
            for (size i = 0; i < of_head; i++) to[i] = narrowed(from[i]);
    }
}

/* (rows, width) -> (of_head, across), 0 behind the rows. */
static void transpose(float *to, size across, const float *from, size width, size rows, size of_head) {
    for (size t = 0; t < rows; t++)
        for (size i = 0; i < of_head; i++) to[i * across + t] = from[t * width + i];
    for (size i = 0; i < of_head; i++)
        for (size t = rows; t < across; t++) to[i * across + t] = 0;
}

/* softmax of the first `count` of a row; what is behind them, up to a multiple of WIDE, becomes 0. */
static void soften(float *row, size count) {
    size last = rounded(count);
    float most[WIDE], sums[WIDE] = {0}, largest = -INFINITY;
    for (size t = count; t < last; t++) row[t] = -INFINITY;
    for (size w = 0; w < WIDE; w++) most[w] = -INFINITY;
    for (size t = 0; t < last; t += WIDE)
        for (size w = 0; w < WIDE; w++) most[w] = row[t + w] > most[w] ? row[t + w] : most[w];
#pragma omp simd reduction(max : largest)
    for (size w = 0; w < WIDE; w++) largest = most[w] > largest ? most[w] : largest;
    for (size t = 0; t < last; t += WIDE)
#pragma omp simd
        for (size w = 0; w < WIDE; w++) {
            row[t + w] = exponential(row[t + w] - largest);
            sums[w] += row[t + w];
        }
    float share = 1 / total(*(const wide *)sums);
    for (size t = 0; t < last; t += WIDE)
#pragma omp simd
        for (size w = 0; w < WIDE; w++) row[t + w] *= share;
}

/* How much queries look at the tokens up to themselves, (rows, across); the first of them is token `start`. */
static void look(float *seen, size across, const float *q, const float *k_across, size width, size start, size rows, size of_head) {
    size last = rounded(start + rows);
    product(seen, across, q, width, 1, k_across, across, rows, of_head, last, 0);
    for (size i = 0; i < rows; i++) {
        float *row = seen + i * across;
        soften(row, start + i + 1);
        for (size t = rounded(start + i + 1); t < last; t++) row[t] = 0;
    }
}

/* Numbers of working memory of a thread. */
size attend_room(size length, size of_head) {
    size width = rounded(of_head), across = rounded(length);
    return (4 * length + 3 * BLOCK) * width + (2 * width + 2 * BLOCK) * across;
}

static void attend_groups(const void *data, size from, size to, size thread) {
    const attention_job *j = data;
    size of_head = j->of_head, length = j->length, width = rounded(of_head), across = rounded(length), queries = length - j->first;
    size step = (j->heads + 2 * j->groups) * of_head, each = j->heads / j->groups;
    float *k = j->room + thread * attend_room(length, of_head), *v = k + length * width, *k_across = v + length * width;
    float *q = k_across + width * across, *seen = q + BLOCK * width;
    for (size which = from; which < to; which++) {
        size text = which / j->groups, group = which % j->groups;
        const number *read = j->read + text * length * step, *cos = j->cos + text * j->turns, *sin = j->sin + text * j->turns;
        gather(k, width, read + (j->heads + group) * of_head, step, cos, sin, length, of_head, 1);
        gather(v, width, read + (j->heads + j->groups + group) * of_head, step, NULL, NULL, length, of_head, 1);
        transpose(k_across, across, k, width, length, of_head);
        for (size head = group * each; head < (group + 1) * each; head++)
            for (size start = j->first; start < length; start += BLOCK) {
                size rows = length - start < BLOCK ? length - start : BLOCK;
                const number *own = read + start * step + head * of_head;
                gather(q, width, own, step, cos + start * of_head, sin + start * of_head, rows, of_head, j->sharp);
                look(seen, across, q, k_across, width, start, rows, of_head);
                product(q, width, seen, across, 1, v, width, rows, start + rows, width, 0);
                number *mixed = j->mixed + ((text * queries + start - j->first) * j->heads + head) * of_head;
                scatter(mixed, j->heads * of_head, q, width, NULL, NULL, rows, of_head, 1);
            }
    }
}

void attend(const number *read, const number *cos, const number *sin, number *mixed, float *room, size batch, size length,
            size first, size heads, size groups, size of_head, size turns, float sharp, size threads) {
    attention_job j = {.read = read, .cos = cos, .sin = sin, .mixed = mixed, .room = room, .length = length, .first = first,
                       .heads = heads, .groups = groups, .of_head = of_head, .turns = turns, .sharp = sharp};
    share(attend_groups, &j, batch * groups, heads / groups * length * of_head, threads);
}

static void attend_groups_back(const void *data, size from, size to, size thread) {
    const attention_job *j = data;
    size of_head = j->of_head, length = j->length, width = rounded(of_head), across = rounded(length), queries = length - j->first;
    size step = (j->heads + 2 * j->groups) * of_head, each = j->heads / j->groups;
    float *k = j->room + thread * attend_room(length, of_head), *v = k + length * width, *d_k = v + length * width;
    float *d_v = d_k + length * width, *k_across = d_v + length * width, *v_across = k_across + width * across;
    float *q = v_across + width * across, *d_q = q + BLOCK * width, *d_mixed = d_q + BLOCK * width;
    float *seen = d_mixed + BLOCK * width, *d_seen = seen + BLOCK * across;
    for (size which = from; which < to; which++) {
        size text = which / j->groups, group = which % j->groups, at_k = (j->heads + group) * of_head;
        size at_v = at_k + j->groups * of_head;
        const number *read = j->read + text * length * step, *cos = j->cos + text * j->turns, *sin = j->sin + text * j->turns;
        number *d_read = j->d_read + text * length * step;
        gather(k, width, read + at_k, step, cos, sin, length, of_head, 1);
        gather(v, width, read + at_v, step, NULL, NULL, length, of_head, 1);
        transpose(k_across, across, k, width, length, of_head);
        transpose(v_across, across, v, width, length, of_head);
        memset(d_k, 0, 2 * length * width * sizeof(float));
        for (size head = group * each; head < (group + 1) * each; head++) {
            for (size t = 0; t < j->first; t++) memset(d_read + t * step + head * of_head, 0, of_head * sizeof(number));
            for (size start = j->first; start < length; start += BLOCK) {
                size rows = length - start < BLOCK ? length - start : BLOCK, count = start + rows, last = rounded(count);
                size at = start * step + head * of_head;
                const number *own_cos = cos + start * of_head, *own_sin = sin + start * of_head;
                const number *slope = j->slope + ((text * queries + start - j->first) * j->heads + head) * of_head;
                gather(q, width, read + at, step, own_cos, own_sin, rows, of_head, j->sharp);
                gather(d_mixed, width, slope, j->heads * of_head, NULL, NULL, rows, of_head, 1);
                look(seen, across, q, k_across, width, start, rows, of_head);
                product(d_v, width, seen, 1, across, d_mixed, width, count, rows, width, 1);
                product(d_seen, across, d_mixed, width, 1, v_across, across, rows, of_head, last, 0);
                for (size i = 0; i < rows; i++) {
                    float *row = seen + i * across, *of_row = d_seen + i * across, mean = 0;
#pragma omp simd reduction(+ : mean)
                    for (size t = 0; t < last; t++) mean += row[t] * of_row[t];
#pragma omp simd
                    for (size t = 0; t < last; t++) of_row[t] = row[t] * (of_row[t] - mean);
                }
                product(d_q, width, d_seen, across, 1, k, width, rows, count, width, 0);
                product(d_k, width, d_seen, 1, across, q, width, count, rows, width, 1);
                scatter(d_read + at, step, d_q, width, own_cos, own_sin, rows, of_head, j->sharp);
            }
        }
        scatter(d_read + at_k, step, d_k, width, cos, sin, length, of_head, 1);
        scatter(d_read + at_v, step, d_v, width, NULL, NULL, length, of_head, 1);
    }
}

void attend_back(const number *slope, const number *read, const number *cos, const number *sin, number *d_read, float *room,
                 size batch, size length, size first, size heads, size groups, size of_head, size turns, float sharp,
                 size threads) {
    attention_job j = {.slope = slope, .read = read, .cos = cos, .sin = sin, .d_read = d_read, .room = room, .length = length,
                       .first = first, .heads = heads, .groups = groups, .of_head = of_head, .turns = turns, .sharp = sharp};
    share(attend_groups_back, &j, batch * groups, heads / groups * length * of_head, threads);
}

typedef struct {
    const number *read, *cos, *sin;
    const uint8_t *seen;
    number *keys, *values, *mixed;
    float *room;
    size used, places, heads, groups, of_head;
    float sharp;
} next_job;

size attend_next_room(size used, size of_head) { return rounded(used + 1) + rounded(of_head); }

static inline float dot(const float *a, const number *b, size count) {
    wide sum = {0};
    size i = 0;
    for (; i + WIDE <= count; i += WIDE) sum += *(const wide *)(a + i) * wide_at(b + i);
    float rest = 0;
    for (; i < count; i++) rest += a[i] * widened(b[i]);
    return total(sum) + rest;
}

/* out (width,) = shares · rows, four rows at a time so that no sum waits for the one before. */
static void weigh(number *out, const float *shares, const number *rows, size count, size width) {
    size i = 0;
    for (; i + WIDE <= width; i += WIDE) {
        wide sums[4] = {0};
        size t = 0;
        for (; t + 4 <= count; t += 4)
            for (size n = 0; n < 4; n++) sums[n] += shares[t + n] * wide_at(rows + (t + n) * width + i);
        for (; t < count; t++) sums[0] += shares[t] * wide_at(rows + t * width + i);
        put_wide(out + i, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
    for (; i < width; i++) {
        float sum = 0;
        for (size t = 0; t < count; t++) sum += shares[t] * widened(rows[t * width + i]);
        out[i] = narrowed(sum);
    }
}

static void attend_next_groups(const void *data, size from, size to, size thread) {
    const next_job *j = data;
    size of_head = j->of_head, width = rounded(of_head), step = (j->heads + 2 * j->groups) * of_head, each = j->heads / j->groups;
    size count = j->used + 1;
    float *own = j->room + thread * attend_next_room(j->used, of_head), *looks = own + width;
    for (size which = from; which < to; which++) {
        size text = which / j->groups, group = which % j->groups;
        const number *read = j->read + text * step, *cos = j->cos + text * of_head, *sin = j->sin + text * of_head;
        number *keys = j->keys + which * j->places * of_head, *values = j->values + which * j->places * of_head;
        gather(own, width, read + (j->heads + group) * of_head, step, cos, sin, 1, of_head, 1);
        scatter(keys + j->used * of_head, of_head, own, width, NULL, NULL, 1, of_head, 1);
        memcpy(values + j->used * of_head, read + (j->heads + j->groups + group) * of_head, of_head * sizeof(number));
        for (size head = group * each; head < (group + 1) * each; head++) {
            number *mixed = j->mixed + (text * j->heads + head) * of_head;
            gather(own, width, read + head * of_head, step, cos, sin, 1, of_head, j->sharp);
            for (size t = 0; t < count; t++) {
                for (size i = 0; i < of_head; i += WIDE) { /* on their way from memory while this is computed */
                    __builtin_prefetch(keys + (t + AHEAD) * of_head + i);
                    __builtin_prefetch(values + t * of_head + i);
                }
                float look = dot(own, keys + t * of_head, of_head);
                looks[t] = j->seen && !j->seen[text * count + t] ? -INFINITY : look;
            }
            soften(looks, count);
            weigh(mixed, looks, values, count, of_head);
        }
    }
}

void attend_next(const number *read, const number *cos, const number *sin, const uint8_t *seen, number *keys, number *values,
                 number *mixed, float *room, size batch, size used, size places, size heads, size groups, size of_head, float sharp,
                 size threads) {
    next_job j = {.read = read, .cos = cos, .sin = sin, .seen = seen, .keys = keys, .values = values, .mixed = mixed, .room = room,
                  .used = used, .places = places, .heads = heads, .groups = groups, .of_head = of_head, .sharp = sharp};
    share(attend_next_groups, &j, batch * groups, heads / groups * (used + 1) * of_head, threads);
}
