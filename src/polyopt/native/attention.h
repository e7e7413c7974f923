/* Attention of new tokens over keys and values in pages.
 *
 * A page holds PAGE positions of one sequence, for every layer and key-value head: keys in blocks
 * [PAGE / LANES][D][LANES] of positions side by side, then values [PAGE][D]. Whole vectors are read
 * of values; what they hold beyond D comes to nothing, and a page ends with room for it.
 * D' is D rounded up to whole vectors.
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
INLINE int64_t head_floats(int64_t dim) { return 2 * PAGE * dim; }

static void store_key(float *head, int64_t slot, const float *key, int64_t dim) {
    float *block = head + slot / LANES * dim * LANES + slot % LANES;
    for (int64_t d = 0; d < dim; d++) block[d * LANES] = key[d];
}

static void store_value(float *head, int64_t slot, const float *value, int64_t dim) {
    memcpy(head + (PAGE + slot) * dim, value, sizeof(float) * (size_t)dim);
}

/* `n` queries times `blocks` blocks of keys. Sums go `ways` ways at a time, which hides the latency
 * of additions; n, blocks and ways are constants after inlining. */
INLINE void score_tile(const int n, const int blocks, const int ways, const float *q, int64_t dim,
                       const float *keys, float *scores, int64_t stride) {
    vec sum[2][4][2];
    for (int u = 0; u < ways; u++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < blocks; j++) sum[u][i][j] = splat(0);
    for (int64_t d = 0; d < dim; d += ways)
        for (int u = 0; u < ways; u++) {
            vec key[2];
            for (int j = 0; j < blocks; j++) key[j] = load(keys + (j * dim + d + u) * LANES);
            for (int i = 0; i < n; i++) {
                vec x = splat(q[i * dim + d + u]);
                for (int j = 0; j < blocks; j++) sum[u][i][j] += x * key[j];
            }
        }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < blocks; j++) {
            vec total = sum[0][i][j];
            if (ways == 2) total += sum[1][i][j];
            store(scores + i * stride + j * LANES, total);
        }
}

INLINE void score_blocks(const int blocks, const float *q, int64_t queries, int64_t dim,
                         const float *keys, float *scores, int64_t stride) {
    for (int64_t i = 0; i < queries; i += 4) {
        const float *from = q + i * dim;
        float *to = scores + i * stride;
        switch (queries - i) {
        case 1: score_tile(1, blocks, 2, from, dim, keys, to, stride); break;
        case 2: score_tile(2, blocks, 2, from, dim, keys, to, stride); break;
        case 3: score_tile(3, blocks, 1, from, dim, keys, to, stride); break;
        default: score_tile(4, blocks, 1, from, dim, keys, to, stride);
        }
    }
}

/* Scores [queries, count] of queries [queries, D] on a page, and arbitrary ones up to the end of
 * the last block. */
static void score_page(const float *q, int64_t queries, int64_t count, int64_t dim,
                       const float *head, float *scores, int64_t stride) {
    int64_t at = 0;
    for (; at + LANES < count; at += 2 * LANES)
        score_blocks(2, q, queries, dim, head + at * dim, scores + at, stride);
    if (at < count) score_blocks(1, q, queries, dim, head + at * dim, scores + at, stride);
}

/* Columns of out [n, D'] += weights [n, count] values [count, D]; n, vectors and ways are constants
 * after inlining. */
INLINE void value_tile(const int n, const int vectors, const int ways, const float *weights,
                       int64_t stride, int64_t count, const float *values, int64_t dim,
                       float *out) {
    int64_t width = padded(dim);
    vec sum[4][4][VALUE_VECTORS];
    for (int u = 0; u < ways; u++)
        for (int i = 0; i < n; i++)
            for (int j = 0; j < vectors; j++)
                sum[u][i][j] = u ? splat(0) : load(out + i * width + j * LANES);
    int64_t c = 0;
#define POSITION(u)                                                                  \
    for (int i = 0; i < n; i++) {                                                    \
        vec w = splat(weights[i * stride + c + u]);                                  \
        for (int j = 0; j < vectors; j++)                                            \
            sum[u][i][j] += w * load(values + (c + u) * dim + j * LANES);            \
    }
    for (; c + ways <= count; c += ways)
        for (int u = 0; u < ways; u++) POSITION(u)
    for (; c < count; c++) POSITION(0)
#undef POSITION
    for (int i = 0; i < n; i++)
        for (int j = 0; j < vectors; j++) {
            vec total = sum[0][i][j];
            for (int u = 1; u < ways; u++) total += sum[u][i][j];
            store(out + i * width + j * LANES, total);
        }
}

INLINE void value_rows(const int n, const int ways, const float *weights, int64_t stride,
                       int64_t count, const float *values, int64_t dim, float *out) {
    int64_t d = 0, width = padded(dim);
    for (; d + VALUE_VECTORS * LANES <= width; d += VALUE_VECTORS * LANES)
        value_tile(n, VALUE_VECTORS, ways, weights, stride, count, values + d, dim, out + d);
    for (; d + 2 * LANES <= width; d += 2 * LANES)
        value_tile(n, 2, ways, weights, stride, count, values + d, dim, out + d);
    if (d < width) value_tile(n, 1, ways, weights, stride, count, values + d, dim, out + d);
}

/* out [queries, D'] += weights [queries, count] times the page's first `count` values. */
static void add_values(const float *weights, int64_t stride, int64_t queries, int64_t count,
                       int64_t dim, const float *head, float *out) {
    const float *values = head + PAGE * dim;
    for (int64_t i = 0; i < queries; i += 4) {
        const float *from = weights + i * stride;
        float *to = out + i * padded(dim);
        switch (queries - i) {
        case 1: value_rows(1, 4, from, stride, count, values, dim, to); break;
        case 2: value_rows(2, 2, from, stride, count, values, dim, to); break;
        case 3: value_rows(3, 1, from, stride, count, values, dim, to); break;
        default: value_rows(4, 1, from, stride, count, values, dim, to);
        }
    }
}

/* Blank out the scores from `used` to the end of its block; the end is returned. */
INLINE int64_t blank(float *scores, int64_t used) {
    int64_t end = padded(used);
    for (int64_t c = used; c < end; c++) scores[c] = -INFINITY;
    return end;
}

INLINE vec largest(const float *scores, int64_t end, vec most) {
    for (int64_t c = 0; c < end; c += LANES) most = larger(load(scores + c), most);
    return most;
}

/* Scores become their exponentials less `most`; their sum is added to `total`. */
INLINE vec exponentials(float *scores, int64_t end, float most, vec total) {
    for (int64_t c = 0; c < end; c += LANES) {
        vec w = exp_of(load(scores + c) - most);
        store(scores + c, w);
        total += w;
    }
    return total;
}

#endif
