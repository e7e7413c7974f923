/* Causal attention over packed sequences, forward and backward.
 *
 * Stretches of tokens stand behind one another; a stretch sees itself causally and, if it has one,
 * all of its trunk. A family is a trunk and the stretches that see it: one thread does a family's
 * share of one key-value head, so a trunk's gradients are summed up in one place and order.
 */
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "vectors.h"

typedef struct {
    int64_t start, length, trunk_start, trunk_length;
} Stretch;

/* Element (token, head, d) of a tensor is at data[token * token_stride + head * head_stride + d]. */
typedef struct {
    float *data;
    int64_t token_stride, head_stride;
} Heads;

typedef struct {
    Heads queries, keys, values, out, out_gradient;
    float *norm; /* logsumexp of each query's scores [tokens, heads] */
    float *query_gradient, *key_gradient, *value_gradient; /* [tokens, heads, size] */
    int64_t heads, key_heads, size;
    float scale;
} PackedAttention;

#define QUERIES 32 /* that are worked on together */
#define COLUMNS (3 * LANES)
#define DEPTH 2 /* vectors of a head's numbers at a time */

INLINE float *row_of(const Heads *of, int64_t token, int64_t head) {
    return of->data + token * of->token_stride + head * of->head_stride;
}

/* out[i][j] (+)= factor * sum over k of a[i * a_row + k * a_step] * b[k * b_step + j]. */
INLINE void block_of(const int rows, const int vectors, const float *a, int64_t a_row,
                    int64_t a_step, const float *b, int64_t b_step, int64_t terms, float factor,
                    float *out, int64_t out_row, int add) {
    vec sum[8][3];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sum[i][j] = splat(0);
    for (int64_t k = 0; k < terms; k++) {
        vec w[3];
        for (int j = 0; j < vectors; j++) w[j] = load(b + k * b_step + j * LANES);
        for (int i = 0; i < rows; i++) {
            vec x = splat(a[i * a_row + k * a_step]);
            for (int j = 0; j < vectors; j++) sum[i][j] += x * w[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            float *to = out + i * out_row + j * LANES;
            store(to, add ? load(to) + factor * sum[i][j] : factor * sum[i][j]);
        }
}

#define TILE_BY(count, vectors) \
    block_of(count, vectors, from, a_row, a_step, b, b_step, terms, factor, to, out_row, add);
#define BY_ROWS(vectors)                          \
    for (int64_t i = 0; i < rows; i += 8) {       \
        const float *from = a + i * a_row;        \
        float *to = out + i * out_row;            \
        switch (rows - i) {                       \
            case 1: TILE_BY(1, vectors) break;    \
            case 2: TILE_BY(2, vectors) break;    \
            case 3: TILE_BY(3, vectors) break;    \
            case 4: TILE_BY(4, vectors) break;    \
            case 5: TILE_BY(5, vectors) break;    \
            case 6: TILE_BY(6, vectors) break;    \
            case 7: TILE_BY(7, vectors) break;    \
            default: TILE_BY(8, vectors)          \
        }                                         \
    }

/* For up to three vectors of columns. */
static void strip(int64_t rows, const float *a, int64_t a_row, int64_t a_step, const float *b,
                  int64_t b_step, int64_t columns, int64_t terms, float factor, float *out,
                  int64_t out_row, int add) {
    if (columns > 2 * LANES) {
        BY_ROWS(3)
    } else if (columns > LANES) {
        BY_ROWS(2)
    } else {
        BY_ROWS(1)
    }
}

/* The same for all columns of b. */
static void across(int64_t rows, const float *a, int64_t a_row, int64_t a_step, const float *b,
                   int64_t b_step, int64_t columns, int64_t terms, float factor, float *out,
                   int64_t out_row, int add) {
    for (; columns >= DEPTH * LANES; columns -= DEPTH * LANES, b += DEPTH * LANES, out += DEPTH * LANES)
        BY_ROWS(DEPTH)
    for (; columns > 0; columns -= LANES, b += LANES, out += LANES) BY_ROWS(1)
}

INLINE int64_t in_vectors(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

INLINE int64_t in_panels(int64_t count) { return (count + COLUMNS - 1) / COLUMNS * COLUMNS; }

/* Rows of one head as columns: panels [size][COLUMNS], zeros beyond the last row. */
static void turn_rows(const Heads *of, int64_t start, int64_t length, int64_t head, int64_t size,
                 float *panels) {
    for (int64_t p = 0; p < length; p += COLUMNS, panels += size * COLUMNS)
        for (int64_t c = 0; c < COLUMNS; c++) {
            const float *row = row_of(of, start + p + c, head);
            for (int64_t d = 0; d < size; d++)
                panels[d * COLUMNS + c] = p + c < length ? row[d] : 0;
        }
}

/* out [rows, length] = factor * rows of a times the columns in panels. */
static void times_panels(const Heads *a, int64_t token, int64_t head, int64_t rows, int64_t size,
                         const float *panels, int64_t length, float factor, float *out,
                         int64_t out_row) {
    for (int64_t p = 0; p < length; p += COLUMNS, panels += size * COLUMNS)
        strip(rows, row_of(a, token, head), a->token_stride, 1, panels, COLUMNS, length - p,
              size, factor, out + p, out_row, 0);
}

/* PackedScratch of one thread: the panels of a trunk and of a stretch, for keys and values, and two
 * blocks of scores. */
typedef struct {
    float *keys[2], *values[2], *scores, *slopes;
} PackedScratch;

static PackedScratch scratch_at(float *space, int64_t longest_trunk, int64_t longest, int64_t size) {
    PackedScratch s;
    s.keys[0] = space;
    s.keys[1] = s.keys[0] + longest_trunk * size;
    s.values[0] = s.keys[1] + longest * size;
    s.values[1] = s.values[0] + longest_trunk * size;
    s.scores = s.values[1] + longest * size;
    s.slopes = s.scores + QUERIES * (longest_trunk + longest);
    return s;
}

/* Floats of scratch for each thread; lengths are of the longest trunk and the longest stretch. */
int64_t polyopt_attention_space(int64_t longest_trunk, int64_t longest, int64_t size) {
    int64_t both = in_panels(longest_trunk) + in_panels(longest);
    return both * (2 * size + 2 * QUERIES);
}

/* Scores of queries first.. of a stretch: on its trunk, then (from column `own`) on itself. */
static void scores_of(const PackedAttention *a, const Stretch *s, int64_t head, int64_t first,
                      int64_t rows, const PackedScratch *at, int64_t own, int64_t width) {
    int64_t token = s->start + first, reach = first + rows;
    times_panels(&a->queries, token, head, rows, a->size, at->keys[0], s->trunk_length, a->scale,
                 at->scores, width);
    times_panels(&a->queries, token, head, rows, a->size, at->keys[1], reach, a->scale,
                 at->scores + own, width);
}

/* Zero lanes from `end` on of a vector that begins at column i. */
INLINE vec cut(vec v, int64_t i, int64_t end) {
    if (i + LANES <= end) return v;
    ivec lane;
    for (int j = 0; j < LANES; j++) lane[j] = j;
    return select_of(lane < (int32_t)(end - i), v, splat(0));
}

static void forward_rows(const PackedAttention *a, const Stretch *s, int64_t head, int64_t key_head,
                         int64_t first, int64_t rows, const PackedScratch *at, int64_t own,
                         int64_t width) {
    scores_of(a, s, head, first, rows, at, own, width);
    for (int64_t r = 0; r < rows; r++) {
        float *row = at->scores + r * width;
        int64_t seen = first + r + 1;
        float most = row_max(row + own, seen, 1), total = 0;
        if (s->trunk_length) most = fmaxf(most, row_max(row, s->trunk_length, 1));
        for (int part = 0; part < 2; part++) {
            int64_t begin = part ? own : 0, end = begin + (part ? seen : s->trunk_length);
            int64_t last = begin + in_vectors(part ? first + rows : s->trunk_length);
            vec sum = splat(0);
            for (int64_t i = begin; i < last; i += LANES) {
                vec w = cut(exp_of(load(row + i) - most), i, end);
                store(row + i, w);
                sum += w;
            }
            total += sum_of(sum);
        }
        for (int64_t i = 0; i < in_vectors(s->trunk_length); i += LANES)
            store(row + i, load(row + i) * (1 / total));
        for (int64_t i = own; i < own + in_vectors(first + rows); i += LANES)
            store(row + i, load(row + i) * (1 / total));
        a->norm[(s->start + first + r) * a->heads + head] = most + logf(total);
    }
    float *out = row_of(&a->out, s->start + first, head);
    if (s->trunk_length)
        across(rows, at->scores, width, 1, row_of(&a->values, s->trunk_start, key_head),
               a->values.token_stride, a->size, s->trunk_length, 1, out, a->out.token_stride, 0);
    across(rows, at->scores + own, width, 1, row_of(&a->values, s->start, key_head),
           a->values.token_stride, a->size, first + rows, 1, out, a->out.token_stride,
           s->trunk_length > 0);
}

static void backward_rows(const PackedAttention *a, const Stretch *s, int64_t head, int64_t key_head,
                          int64_t first, int64_t rows, const PackedScratch *at, int64_t own,
                          int64_t width) {
    int64_t token = s->start + first, reach = first + rows, size = a->size;
    scores_of(a, s, head, first, rows, at, own, width);
    times_panels(&a->out_gradient, token, head, rows, size, at->values[0], s->trunk_length, 1,
                 at->slopes, width);
    times_panels(&a->out_gradient, token, head, rows, size, at->values[1], reach, 1,
                 at->slopes + own, width);
    for (int64_t r = 0; r < rows; r++) {
        float *row = at->scores + r * width, *slope = at->slopes + r * width;
        const float *out = row_of(&a->out, token + r, head);
        const float *gradient = row_of(&a->out_gradient, token + r, head);
        vec along = splat(0);
        for (int64_t d = 0; d < size; d += LANES) along += load(out + d) * load(gradient + d);
        float mean = sum_of(along), norm = a->norm[(token + r) * a->heads + head];
        for (int part = 0; part < 2; part++) {
            int64_t begin = part ? own : 0, end = begin + (part ? first + r + 1 : s->trunk_length);
            int64_t last = begin + in_vectors(part ? reach : s->trunk_length);
            for (int64_t i = begin; i < last; i += LANES) {
                vec p = cut(exp_of(load(row + i) - norm), i, end);
                store(row + i, p);
                store(slope + i, p * (load(slope + i) - mean) * a->scale);
            }
        }
    }
    const int64_t stride = a->key_heads * size;
    float *query_gradient = a->query_gradient + (token * a->heads + head) * size;
    for (int part = 0; part < 2; part++) {
        int64_t start = part ? s->start : s->trunk_start, length = part ? reach : s->trunk_length;
        if (!length) continue;
        int64_t offset = part ? own : 0, place = (start * a->key_heads + key_head) * size;
        across(rows, at->slopes + offset, width, 1, row_of(&a->keys, start, key_head),
               a->keys.token_stride, size, length, 1, query_gradient, a->heads * size,
               part && s->trunk_length);
        across(length, at->slopes + offset, 1, width, row_of(&a->queries, token, head),
               a->queries.token_stride, size, rows, 1, a->key_gradient + place, stride, 1);
        across(length, at->scores + offset, 1, width, row_of(&a->out_gradient, token, head),
               a->out_gradient.token_stride, size, rows, 1, a->value_gradient + place, stride, 1);
    }
}

static void family_of(const PackedAttention *a, const Stretch *stretches, int64_t count, int64_t key_head,
                      const PackedScratch *at, int backward) {
    const int64_t group = a->heads / a->key_heads;
    for (int64_t i = 0; i < count; i++) {
        const Stretch *s = stretches + i;
        if (s->trunk_length && (i == 0 || s->trunk_start != s[-1].trunk_start || !s[-1].trunk_length)) {
            turn_rows(&a->keys, s->trunk_start, s->trunk_length, key_head, a->size, at->keys[0]);
            if (backward)
                turn_rows(&a->values, s->trunk_start, s->trunk_length, key_head, a->size, at->values[0]);
        }
        turn_rows(&a->keys, s->start, s->length, key_head, a->size, at->keys[1]);
        if (backward) turn_rows(&a->values, s->start, s->length, key_head, a->size, at->values[1]);
        const int64_t own = in_panels(s->trunk_length), width = own + in_panels(s->length);
        for (int64_t g = 0; g < group; g++)
            for (int64_t first = 0; first < s->length; first += QUERIES) {
                int64_t rows = s->length - first < QUERIES ? s->length - first : QUERIES;
                (backward ? backward_rows : forward_rows)(a, s, key_head * group + g, key_head,
                                                          first, rows, at, own, width);
            }
    }
}

/* Families are runs of stretches: family f has those from families[f] to families[f + 1]. */
void polyopt_attention(const PackedAttention *a, const Stretch *stretches, const int64_t *families,
                       int64_t count, int64_t longest_trunk, int64_t longest, int backward,
                       float *space, int threads) {
    const int64_t each = polyopt_attention_space(longest_trunk, longest, a->size);
#pragma omp parallel num_threads(threads)
    {
        int thread = 0;
#ifdef _OPENMP
        thread = omp_get_thread_num();
#endif
        PackedScratch at = scratch_at(space + thread * each, in_panels(longest_trunk), in_panels(longest), a->size);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t f = 0; f < count; f++)
            for (int64_t h = 0; h < a->key_heads; h++)
                family_of(a, stretches + families[f], families[f + 1] - families[f], h, &at, backward);
    }
}
