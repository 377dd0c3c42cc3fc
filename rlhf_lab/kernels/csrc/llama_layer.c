/* A decoder layer of the Llama kind with its low-rank updates, whole, forward and back: see llama_layer.py.
 *
 * Texts are dealt out to the threads, a few at a time: what a layer makes of them between its products then stays in the cache of a
 * core. Nothing of it is kept for the way back but what attention gave; the rest is found again, for products cost less than
 * memory here. Slopes are found for each text and then added up, whoever found them, so they do not depend on how many threads
 * there are.
 */

#include "amx_matmul.h"

#ifdef MULTIPLIES

enum { Q, K, V, O, GATE, UP, DOWN, ALL };

/* One of the seven weights: W and W^T laid out, and of its update A, s · B, (s · B)^T and A^T. padded: the rank, up to a multiple
 * of DEEP; 0 where there is no update. */
typedef struct {
    const number *forward, *back, *narrow, *wide, *narrow_back, *wide_back;
    size in, out, rank, padded;
} projection;

/* bias: of q, k and v in turn, or NULL. scale: s. */
typedef struct {
    projection of[ALL];
    const number *bias, *norms[2];
    size heads, groups, of_head;
    float eps[2], sharp, scale;
} layer;

/* What is made of some texts. */
typedef struct {
    number *inner, *read, *mixed, *around, *middle, *gate, *up, *opened, *low[ALL];
    float *inverse[2], *looks;
    number *inner2, *d_gate, *d_up, *d_opened, *d_inner, *d_middle, *d_mixed, *d_read, *low_back[ALL], *few;
    size of_few;
} rooms;

static inline size width_of(const layer *w) { return w->of[Q].in; }
static inline size read_by(const layer *w) { return (w->heads + 2 * w->groups) * w->of_head; }

#define NOWHERE ((char *)64)

static void *take(char **at, size bytes) {
    void *here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

/* Deals out memory that begins at `at`; returns where it ends. tokens: of all texts; asked: those of them whose output is wanted;
 * length: of each text, 0 where attention is somebody else's; back: for the way back too. */
static char *deal(rooms *r, char *at, const layer *w, size tokens, size asked, size length, size back, size threads) {
    size h = width_of(w), inner = w->of[GATE].out, mixed = w->of[O].in, most = tokens * sizeof(number), some = asked * sizeof(number);
    memset(r, 0, sizeof *r);
    r->inner = take(&at, most * h);
    r->inverse[0] = take(&at, tokens * sizeof(float));
    r->inverse[1] = take(&at, asked * sizeof(float));
    r->middle = take(&at, some * h);
    r->gate = take(&at, some * inner);
    r->up = take(&at, some * inner);
    r->opened = take(&at, some * inner);
    for (int p = 0; p < ALL; p++) r->low[p] = take(&at, (p < O ? most : some) * w->of[p].padded);
    if (!length) return at;
    r->read = take(&at, most * read_by(w));
    r->mixed = take(&at, some * mixed);
    r->around = take(&at, most * h);
    r->looks = take(&at, threads * attend_room(length, w->of_head) * sizeof(float));
    if (!back) return at;
    r->inner2 = take(&at, some * h);
    r->d_gate = take(&at, some * inner);
    r->d_up = take(&at, some * inner);
    r->d_opened = take(&at, some * inner);
    r->d_inner = take(&at, most * h);
    r->d_middle = take(&at, some * h);
    r->d_mixed = take(&at, some * mixed);
    r->d_read = take(&at, most * read_by(w));
    for (int p = 0; p < ALL; p++) {
        r->low_back[p] = take(&at, (p < O ? most : some) * w->of[p].padded);
        size wanted = slopes_room(length, w->of[p].rank);
        r->of_few = wanted > r->of_few ? wanted : r->of_few;
    }
    r->few = take(&at, threads * r->of_few * sizeof(number));
    return at;
}

/* low = x · A^T, where there is an update. */
static void lower(const projection *p, const number *x, number *low, size rows, size threads) {
    linear_job j = {.of = {{x, p->narrow, p->in, p->in}}, .count = 1, .out = low, .rows = rows, .width = p->padded, .apart = p->padded};
    if (p->padded) linear(&j, threads);
}

static void project(const projection *p, const number *x, number *low, const number *bias, const number *onto, number *out,
                    size apart, size rows, size threads) {
    linear_job j = {.of = {{x, p->forward, p->in, p->in}, {low, p->wide, p->padded, p->padded}}, .count = p->padded ? 2 : 1,
                    .bias = bias, .onto = onto, .out = out, .rows = rows, .width = p->out, .apart = apart};
    lower(p, x, low, rows, threads);
    linear(&j, threads);
}

/* low = slope · s · B, where there is an update. */
static void lower_back(const projection *p, const number *slope, size apart, number *low, size rows, size threads) {
    linear_job j = {.of = {{slope, p->narrow_back, apart, p->out}}, .count = 1, .out = low, .rows = rows, .width = p->padded,
                    .apart = p->padded};
    if (p->padded) linear(&j, threads);
}

/* One more that the slope of what it read is to be found of. */
static void and_of(linear_job *j, const projection *p, const number *slope, size apart, const number *low) {
    j->of[j->count++] = (factor){slope, p->back, apart, p->out};
    if (p->padded) j->of[j->count++] = (factor){low, p->wide_back, p->padded, p->padded};
}

static linear_job back_to(number *out, size rows, size width) {
    return (linear_job){.out = out, .rows = rows, .width = width, .apart = width};
}

/* q, k and v of each token. */
static void read_tokens(const layer *w, const rooms *r, const number *x, number *read, size rows, size threads) {
    norm(x, w->norms[0], r->inner, r->inverse[0], rows, width_of(w), w->eps[0], threads);
    size column = 0;
    for (int p = Q; p <= V; p++) {
        project(&w->of[p], r->inner, r->low[p], w->bias ? w->bias + column : NULL, NULL, read + column, read_by(w), rows, threads);
        column += w->of[p].out;
    }
}

/* Up to the gated unit's input, from what attention gave; inner: room for what the second norm gives. */
static void up_to_gate(const layer *w, const rooms *r, const number *x, const number *mixed, number *inner, size rows, size threads) {
    project(&w->of[O], mixed, r->low[O], NULL, x, r->middle, width_of(w), rows, threads);
    norm(r->middle, w->norms[1], inner, r->inverse[1], rows, width_of(w), w->eps[1], threads);
    project(&w->of[GATE], inner, r->low[GATE], NULL, NULL, r->gate, w->of[GATE].out, rows, threads);
    project(&w->of[UP], inner, r->low[UP], NULL, NULL, r->up, w->of[UP].out, rows, threads);
}

static void rest_of_tokens(const layer *w, const rooms *r, const number *x, const number *mixed, number *out, size rows, size threads) {
    up_to_gate(w, r, x, mixed, r->inner, rows, threads);
    swiglu(r->gate, r->up, r->opened, rows * w->of[GATE].out, threads);
    project(&w->of[DOWN], r->opened, r->low[DOWN], NULL, r->middle, out, width_of(w), rows, threads);
}

/* Bytes of working memory for tokens. */
size tokens_room(const layer *w, size rows) {
    rooms r;
    return deal(&r, NOWHERE, w, rows, rows, 0, 0, 0) - NOWHERE;
}

/* q, k and v (rows, read_by) of tokens x (rows, width). */
void layer_read(const layer *w, const number *x, number *read, char *room, size rows, size threads) {
    rooms r;
    deal(&r, room, w, rows, rows, 0, 0, 0);
    read_tokens(w, &r, x, read, rows, threads);
}

/* The layer's output of tokens x (rows, width), from what attention gave of each. */
void layer_rest(const layer *w, const number *x, const number *mixed, number *out, char *room, size rows, size threads) {
    rooms r;
    deal(&r, room, w, rows, rows, 0, 0, 0);
    rest_of_tokens(w, &r, x, mixed, out, rows, threads);
}

/* -------------------------------------------------------------------------------------------------------- whole texts */

/* each: bytes of working memory of a part; inside: threads that work on a part together; of_text: numbers of a text's slopes. */
typedef struct {
    const layer *w;
    const number *x, *cos, *sin, *slope;
    number *out, *mixed, *d_x;
    float *slopes;
    char *room;
    size texts, length, first, turns, parts, each, inside, of_text;
} texts_job;

/* Into how many parts texts are dealt out: so few that reading the weights anew for each does not cost more than what lies
 * between the products, and enough for all threads. */
static size parts_of(const layer *w, size texts, size length, size threads) {
    size weights = 0, numbers = 3 * width_of(w) + read_by(w) + 3 * w->of[GATE].out;
    for (int p = 0; p < ALL; p++) weights += w->of[p].in * w->of[p].out;
    if (texts < threads) return 1;
    size parts = texts * length * numbers / weights + 1;
    parts = (parts + threads - 1) / threads * threads;
    return parts < texts ? parts : texts;
}

/* Bytes of working memory of a part. Where there are fewer texts than threads these work on all of them together. */
static size part_room(const layer *w, size texts, size length, size back, size threads) {
    rooms r;
    size parts = parts_of(w, texts, length, threads), tokens = (texts + parts - 1) / parts * length;
    return deal(&r, NOWHERE, w, tokens, tokens, length, back, texts < threads ? threads : 1) - NOWHERE;
}

size layer_room(const layer *w, size texts, size length, size back, size threads) {
    return part_room(w, texts, length, back, threads) * (texts < threads ? 1 : threads);
}

static void deal_out(work run, texts_job *j, size back, size threads) {
    j->parts = parts_of(j->w, j->texts, j->length, threads);
    j->each = part_room(j->w, j->texts, j->length, back, threads);
    j->inside = j->texts < threads ? threads : 1;
    share(run, j, j->parts, j->texts * j->length * width_of(j->w) * width_of(j->w), threads);
}

/* Some of the texts: from `start` on, so many of them. */
typedef struct {
    size start, texts, tokens, asked;
    const number *x, *cos, *sin;
    number *mixed;
} part;

static part part_at(const texts_job *j, rooms *r, size which, size thread, size back) {
    const layer *w = j->w;
    part p = {.start = j->texts * which / j->parts};
    p.texts = j->texts * (which + 1) / j->parts - p.start;
    p.tokens = p.texts * j->length;
    p.asked = p.texts * (j->length - j->first);
    deal(r, j->room + thread * j->each, w, p.tokens, p.asked, j->length, back, j->inside);
    p.x = j->x + p.start * j->length * width_of(w);
    p.cos = j->cos + p.start * j->turns;
    p.sin = j->sin + p.start * j->turns;
    p.mixed = j->mixed ? j->mixed + p.start * (j->length - j->first) * w->of[O].in : r->mixed;
    return p;
}

/* What comes into the layer for the tokens whose output is wanted. */
static const number *asked_of(const texts_job *j, const part *p, const rooms *r) {
    size h = width_of(j->w), asked = j->length - j->first;
    if (!j->first) return p->x;
    for (size t = 0; t < p->texts; t++)
        memcpy(r->around + t * asked * h, p->x + (t * j->length + j->first) * h, asked * h * sizeof(number));
    return r->around;
}

static void forward_parts(const void *data, size from, size to, size thread) {
    const texts_job *j = data;
    const layer *w = j->w;
    for (size which = from; which < to; which++) {
        rooms r;
        part p = part_at(j, &r, which, thread, 0);
        read_tokens(w, &r, p.x, r.read, p.tokens, j->inside);
        attend(r.read, p.cos, p.sin, p.mixed, r.looks, p.texts, j->length, j->first, w->heads, w->groups, w->of_head, j->turns,
               w->sharp, j->inside);
        number *out = j->out + p.start * (j->length - j->first) * width_of(w);
        rest_of_tokens(w, &r, asked_of(j, &p, &r), p.mixed, out, p.asked, j->inside);
    }
}

/* out (texts · (length - first), width) of texts x (texts · length, width); mixed: what attention gave, for the way back, or
 * NULL. room: layer_room bytes. */
void layer_forward(const layer *w, const number *x, const number *cos, const number *sin, number *out, number *mixed, char *room,
                   size texts, size length, size first, size turns, size threads) {
    texts_job j = {.w = w, .x = x, .cos = cos, .sin = sin, .out = out, .mixed = mixed, .room = room, .texts = texts,
                   .length = length, .first = first, .turns = turns};
    deal_out(forward_parts, &j, 0, threads);
}

/* Slopes of one update: A's from what it read, x, and B's from the slope of what it gave, for each text. */
typedef struct {
    const projection *of;
    const number *x, *slope, *low, *low_back;
    number *few;
    float *to, scale;
    size rows, apart, of_few, of_text;
} slopes_job;

static void slopes_of_texts(const void *data, size from, size to, size thread) {
    const slopes_job *j = data;
    const projection *p = j->of;
    number *few = j->few + thread * j->of_few;
    for (size t = from; t < to; t++) {
        size row = t * j->rows;
        float *a = j->to + t * j->of_text, *b = a + p->rank * p->in;
        slopes(a, j->low_back + row * p->padded, p->padded, j->x + row * p->in, p->in, j->rows, p->rank, p->in, 1, 0, few);
        slopes(b, j->low + row * p->padded, p->padded, j->slope + row * j->apart, j->apart, j->rows, p->rank, p->out, j->scale, 1, few);
    }
}

static void learn(const texts_job *j, const part *p, const rooms *r, int which, const number *x, const number *slope, size apart) {
    const projection *of = &j->w->of[which];
    if (!of->padded) return;
    size before = 0;
    for (int q = 0; q < which; q++) before += j->w->of[q].rank * (j->w->of[q].in + j->w->of[q].out);
    slopes_job s = {.of = of, .x = x, .slope = slope, .low = r->low[which], .low_back = r->low_back[which], .few = r->few,
                    .to = j->slopes + p->start * j->of_text + before, .scale = j->w->scale,
                    .rows = which < O ? j->length : j->length - j->first, .apart = apart, .of_few = r->of_few, .of_text = j->of_text};
    share(slopes_of_texts, &s, p->texts, s.rows * (of->in + of->out), j->inside);
}

static void back_parts(const void *data, size from, size to, size thread) {
    const texts_job *j = data;
    const layer *w = j->w;
    size h = width_of(w), threads = j->inside, asked = j->length - j->first;
    const projection *down = &w->of[DOWN], *o = &w->of[O];
    for (size which = from; which < to; which++) {
        rooms r;
        part p = part_at(j, &r, which, thread, 1);
        const number *slope = j->slope + p.start * asked * h;
        read_tokens(w, &r, p.x, r.read, p.tokens, threads);
        up_to_gate(w, &r, asked_of(j, &p, &r), p.mixed, r.inner2, p.asked, threads);

        linear_job to_opened = back_to(r.d_opened, p.asked, down->in), to_inner = back_to(r.d_inner, p.asked, h);
        lower_back(down, slope, h, r.low_back[DOWN], p.asked, threads);
        and_of(&to_opened, down, slope, h, r.low_back[DOWN]);
        linear(&to_opened, threads);
        swiglu_back(r.d_opened, r.gate, r.up, r.d_gate, r.d_up, r.opened, p.asked * down->in, threads);
        lower(down, r.opened, r.low[DOWN], p.asked, threads);
        learn(j, &p, &r, DOWN, r.opened, slope, h);

        const number *of_unit[] = {r.d_gate, r.d_up};
        for (int q = GATE; q <= UP; q++) {
            lower_back(&w->of[q], of_unit[q - GATE], down->in, r.low_back[q], p.asked, threads);
            and_of(&to_inner, &w->of[q], of_unit[q - GATE], down->in, r.low_back[q]);
            learn(j, &p, &r, q, r.inner2, of_unit[q - GATE], down->in);
        }
        linear(&to_inner, threads);
        norm_back(r.d_inner, r.middle, r.inverse[1], w->norms[1], slope, r.d_middle, r.inner2, p.asked, h, threads);

        linear_job to_mixed = back_to(r.d_mixed, p.asked, o->in), to_read = back_to(r.d_inner, p.tokens, h);
        lower_back(o, r.d_middle, h, r.low_back[O], p.asked, threads);
        and_of(&to_mixed, o, r.d_middle, h, r.low_back[O]);
        linear(&to_mixed, threads);
        learn(j, &p, &r, O, p.mixed, r.d_middle, h);

        attend_back(r.d_mixed, r.read, p.cos, p.sin, r.d_read, r.looks, p.texts, j->length, j->first, w->heads, w->groups, w->of_head,
                    j->turns, w->sharp, threads);
        const number *column = r.d_read;
        for (int q = Q; q <= V; column += w->of[q++].out) {
            lower_back(&w->of[q], column, read_by(w), r.low_back[q], p.tokens, threads);
            and_of(&to_read, &w->of[q], column, read_by(w), r.low_back[q]);
            learn(j, &p, &r, q, r.inner, column, read_by(w));
        }
        if (!j->d_x) continue;
        linear(&to_read, threads);
        memset(r.around, 0, p.tokens * h * sizeof(number));
        for (size t = 0; t < p.texts; t++)
            memcpy(r.around + (t * j->length + j->first) * h, r.d_middle + t * asked * h, asked * h * sizeof(number));
        norm_back(r.d_inner, p.x, r.inverse[0], w->norms[0], r.around, j->d_x + p.start * j->length * h, r.inner, p.tokens, h, threads);
    }
}

static void add_up(const void *data, size from, size to, size thread) {
    (void)thread;
    const texts_job *j = data;
    for (size t = 1; t < j->texts; t++)
#pragma omp simd
        for (size i = from; i < to; i++) j->slopes[i] += j->slopes[t * j->of_text + i];
}

/* Numbers of the slopes of all updates: A's and B's of q, k, v, o, gate, up and down in turn. */
size layer_slopes(const layer *w) {
    size count = 0;
    for (int p = 0; p < ALL; p++) count += w->of[p].rank * (w->of[p].in + w->of[p].out);
    return count;
}

/* The way back: d_x (texts · length, width), or NULL where it is not wanted, from the slope of `out`. slopes: layer_slopes numbers
 * for each text; those of the first become the sum of all. */
void layer_back(const layer *w, const number *x, number *mixed, const number *slope, const number *cos, const number *sin,
                number *d_x, float *slopes, char *room, size texts, size length, size first, size turns, size threads) {
    texts_job j = {.w = w, .x = x, .cos = cos, .sin = sin, .slope = slope, .mixed = mixed, .d_x = d_x, .slopes = slopes,
                   .room = room, .texts = texts, .length = length, .first = first, .turns = turns, .of_text = layer_slopes(w)};
    deal_out(back_parts, &j, 1, threads);
    share(add_up, &j, j.of_text, texts, threads);
}

#endif
