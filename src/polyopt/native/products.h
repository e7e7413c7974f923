/* y = x W^T + b in float32, for weights packed in panels of TILE_COLUMNS outputs.
 *
 * A panel holds, for each input k in turn, the weights of its TILE_COLUMNS outputs side by side
 * (zeros beyond the last output), so one row of x times one panel reads memory in order.
 */
#ifndef POLYOPT_PRODUCTS_H
#define POLYOPT_PRODUCTS_H

#include "vectors.h"

#define PANEL_VECTORS (TILE_COLUMNS / LANES)
#define CACHE_LINE 16 /* floats */
#define INPUT_LINES ((TILE_COLUMNS + CACHE_LINE - 1) / CACHE_LINE)

typedef struct {
    const float *panels;
    const float *bias; /* or NULL */
    int64_t inputs, outputs;
} Weight;

INLINE int64_t panels_of(int64_t outputs) { return (outputs + TILE_COLUMNS - 1) / TILE_COLUMNS; }

/* What a tile fetches while it is computed: `lines` cache lines of each of the first inputs. */
typedef struct {
    const float *from;
    int64_t inputs;
} Ahead;

#define CHUNK 192 /* inputs of a panel that all rows go over together: they stay in the cache */

/* sum += `rows` rows of x times inputs [begin, end) of a panel; `rows` and `lines` are constants
 * after inlining. */
INLINE void tile_part(const int rows, const int lines, const float *x, int64_t x_stride,
                      int64_t begin, int64_t end, const float *panel, const float *ahead,
                      vec sum[TILE_ROWS][PANEL_VECTORS]) {
    for (int64_t k = begin; k < end; k++) {
        vec w[PANEL_VECTORS];
        for (int l = 0; l < lines; l++)
            __builtin_prefetch(ahead + (k * lines + l) * CACHE_LINE, 0, 2);
        for (int j = 0; j < PANEL_VECTORS; j++) w[j] = load(panel + k * TILE_COLUMNS + j * LANES);
        for (int i = 0; i < rows; i++) {
            vec a = splat(x[i * x_stride + k]);
            for (int j = 0; j < PANEL_VECTORS; j++) sum[i][j] += a * w[j];
        }
    }
}

/* Where a tile's sums go: whole vectors, or the first `width` columns. */
typedef struct {
    float *to;
    int64_t stride, width;
    const float *bias;
    int add;
} Target;

INLINE void finish(const int rows, vec sum[TILE_ROWS][PANEL_VECTORS], const Target *y) {
    if (y->width == TILE_COLUMNS && !y->bias) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL_VECTORS; j++) {
                float *to = y->to + i * y->stride + j * LANES;
                if (y->add) sum[i][j] += load(to);
                store(to, sum[i][j]);
            }
        return;
    }
    for (int i = 0; i < rows; i++)
        for (int64_t c = 0; c < y->width; c++) {
            float *to = y->to + i * y->stride + c;
            float value = sum[i][c / LANES][c % LANES] + (y->bias ? y->bias[c] : 0);
            *to = y->add ? *to + value : value;
        }
}

INLINE void tile(const int rows, const int lines, const float *x, int64_t x_stride, int64_t inputs,
                 const float *panel, Ahead ahead, const Target *y) {
    vec sum[TILE_ROWS][PANEL_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL_VECTORS; j++) sum[i][j] = splat(0);
    tile_part(rows, lines, x, x_stride, 0, ahead.inputs, panel, ahead.from, sum);
    tile_part(rows, 0, x, x_stride, ahead.inputs, inputs, panel, NULL, sum);
    finish(rows, sum, y);
}

/* One tile of `count` rows, the `index`-th of `tiles`. All tiles of a chunk together fetch what
 * follows it: memory is read while other rows are computed. */
static void tile_of(int count, int64_t index, int64_t tiles, const float *x, int64_t x_stride,
                    int64_t inputs, const float *panel, const Target *y) {
    const float *next = panel + inputs * TILE_COLUMNS;
    int few = tiles < INPUT_LINES;
    int64_t lines = inputs * INPUT_LINES, share = few ? lines : (lines + tiles - 1) / tiles;
    Ahead ahead = {next + index * share * CACHE_LINE, few ? (index ? 0 : inputs) : share};
    switch (count) {
#define CASE(n)                                                                   \
    case n:                                                                       \
        if (few) tile(n, INPUT_LINES, x, x_stride, inputs, panel, ahead, y);      \
        else tile(n, 1, x, x_stride, inputs, panel, ahead, y);                    \
        break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_ROWS == 8
        CASE(7) CASE(8)
#endif
#undef CASE
    }
}

/* Rows of x times one panel, into columns of y; added to what is there if `add`. */
static void panel_product(const Weight *weight, int64_t index, const float *x, int64_t rows,
                          int64_t x_stride, float *y, int64_t y_stride, int add) {
    const float *panel = weight->panels + index * weight->inputs * TILE_COLUMNS;
    int64_t first = index * TILE_COLUMNS, left = weight->outputs - first;
    int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    int64_t chunk = tiles > 1 ? CHUNK : weight->inputs;
    for (int64_t begin = 0; begin < weight->inputs; begin += chunk) {
        int64_t inputs = weight->inputs - begin < chunk ? weight->inputs - begin : chunk;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t row = t * TILE_ROWS;
            int count = rows - row < TILE_ROWS ? (int)(rows - row) : TILE_ROWS;
            Target to = {y + row * y_stride + first, y_stride,
                         left < TILE_COLUMNS ? left : TILE_COLUMNS,
                         weight->bias && !begin ? weight->bias + first : NULL, add || begin};
            tile_of(count, t, tiles, x + row * x_stride + begin, x_stride, inputs,
                    panel + begin * TILE_COLUMNS, &to);
        }
    }
}

#endif
