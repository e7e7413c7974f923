/* Attention of new tokens over keys and values in pages.
 *
 * A page holds PAGE positions of one sequence, for every layer and key-value head: keys in blocks
 * [PAGE / LANES][D][LANES] of positions side by side, then values [PAGE][D'], D' being D rounded up
 * to whole vectors (zeros beyond D).
 */
#ifndef POLYOPT_ATTENTION_H
#define POLYOPT_ATTENTION_H

#include <math.h>

#include "vectors.h"

#define PAGE 32

#if LANES == 16
#define VALUE_VECTORS 4
#else
#define VALUE_VECTORS 2
#endif

INLINE int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }
INLINE int64_t pages_of(int64_t positions) { return (positions + PAGE - 1) / PAGE; }
INLINE int64_t head_floats(int64_t dim) { return PAGE * (dim + padded(dim)); }

static void store_key(float *head, int64_t slot, const float *key, int64_t dim) {
    float *block = head + slot / LANES * dim * LANES + slot % LANES;
    for (int64_t d = 0; d < dim; d++) block[d * LANES] = key[d];
}

static void store_value(float *head, int64_t slot, const float *value, int64_t dim) {
    float *to = head + PAGE * dim + slot * padded(dim);
    memcpy(to, value, sizeof(float) * (size_t)dim);
    for (int64_t d = dim; d < padded(dim); d++) to[d] = 0;
}

/* `n` (a constant after inlining) queries times two blocks of keys. */
INLINE void score_tile(const int n, const float *q, int64_t dim, const float *keys, float *scores,
                       int64_t stride) {
    vec first[4], second[4];
    for (int i = 0; i < n; i++) first[i] = second[i] = splat(0);
    for (int64_t d = 0; d < dim; d++) {
        vec a = load(keys + d * LANES), b = load(keys + (dim + d) * LANES);
        for (int i = 0; i < n; i++) {
            vec x = splat(q[i * dim + d]);
            first[i] += x * a;
            second[i] += x * b;
        }
    }
    for (int i = 0; i < n; i++) {
        store(scores + i * stride, first[i]);
        store(scores + i * stride + LANES, second[i]);
    }
}

/* Scores [queries, PAGE] of queries [queries, D] on a page; those beyond its end are arbitrary. */
static void score_page(const float *q, int64_t queries, int64_t dim, const float *head,
                       float *scores, int64_t stride) {
    for (int64_t block = 0; block < PAGE / LANES; block += 2) {
        const float *keys = head + block * dim * LANES;
        for (int64_t i = 0; i < queries; i += 4) {
            const float *from = q + i * dim;
            float *to = scores + i * stride + block * LANES;
            switch (queries - i) {
            case 1: score_tile(1, from, dim, keys, to, stride); break;
            case 2: score_tile(2, from, dim, keys, to, stride); break;
            case 3: score_tile(3, from, dim, keys, to, stride); break;
            default: score_tile(4, from, dim, keys, to, stride);
            }
        }
    }
}

/* Columns of out [n, D'] += weights [n, count] values [count, D']; n and vectors are constants. */
INLINE void value_tile(const int n, const int vectors, const float *weights, int64_t stride,
                       int64_t count, const float *values, int64_t width, float *out) {
    vec sum[4][VALUE_VECTORS];
    for (int i = 0; i < n; i++)
        for (int j = 0; j < vectors; j++) sum[i][j] = load(out + i * width + j * LANES);
    for (int64_t c = 0; c < count; c++) {
        vec v[VALUE_VECTORS];
        for (int j = 0; j < vectors; j++) v[j] = load(values + c * width + j * LANES);
        for (int i = 0; i < n; i++) {
            vec w = splat(weights[i * stride + c]);
            for (int j = 0; j < vectors; j++) sum[i][j] += w * v[j];
        }
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < vectors; j++) store(out + i * width + j * LANES, sum[i][j]);
}

INLINE void value_rows(const int n, const float *weights, int64_t stride, int64_t count,
                       const float *values, int64_t width, float *out) {
    int64_t d = 0;
    for (; d + VALUE_VECTORS * LANES <= width; d += VALUE_VECTORS * LANES)
        value_tile(n, VALUE_VECTORS, weights, stride, count, values + d, width, out + d);
    for (; d < width; d += LANES)
        value_tile(n, 1, weights, stride, count, values + d, width, out + d);
}

/* out [queries, D'] += weights [queries, count] times the page's first `count` values. */
static void add_values(const float *weights, int64_t stride, int64_t queries, int64_t count,
                       int64_t dim, const float *head, float *out) {
    const float *values = head + PAGE * dim;
    int64_t width = padded(dim);
    for (int64_t i = 0; i < queries; i += 4) {
        const float *from = weights + i * stride;
        float *to = out + i * width;
        switch (queries - i) {
        case 1: value_rows(1, from, stride, count, values, width, to); break;
        case 2: value_rows(2, from, stride, count, values, width, to); break;
        case 3: value_rows(3, from, stride, count, values, width, to); break;
        default: value_rows(4, from, stride, count, values, width, to);
        }
    }
}

/* Scores [first, last) become their exponentials less `most`, those from `used` on zeros. */
static vec exponentials(float *scores, int64_t used, int64_t columns, float most) {
    vec total = splat(0);
    for (int64_t c = used; c < columns; c++) scores[c] = -INFINITY;
    for (int64_t c = 0; c < columns; c += LANES) {
        vec w = exp_of(load(scores + c) - most);
        store(scores + c, w);
        total += w;
    }
    return total;
}

static vec largest(const float *scores, int64_t used, vec most) {
    int64_t c = 0;
    for (; c + LANES <= used; c += LANES) most = larger(load(scores + c), most);
    for (; c < used; c++) most[0] = scores[c] > most[0] ? scores[c] : most[0];
    return most;
}

#endif
