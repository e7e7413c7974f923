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

/* Memory to fetch while a tile is computed: `lines` for each of the first `inputs` inputs. */
typedef struct {
    const float *from;
    int64_t inputs;
} Ahead;

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

INLINE void tile(const int rows, const int lines, const float *x, int64_t x_stride, int64_t inputs,
                 const float *panel, Ahead ahead, vec out[TILE_ROWS][PANEL_VECTORS]) {
    vec sum[TILE_ROWS][PANEL_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL_VECTORS; j++) sum[i][j] = splat(0);
    tile_part(rows, lines, x, x_stride, 0, ahead.inputs, panel, ahead.from, sum);
    tile_part(rows, 0, x, x_stride, ahead.inputs, inputs, panel, NULL, sum);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL_VECTORS; j++) out[i][j] = sum[i][j];
}

/* One tile of `count` rows, the `index`-th of `tiles`. All tiles of a panel together fetch the next
 * panel: memory is read while other rows are computed. */
static void tile_of(int count, int64_t index, int64_t tiles, const float *x, int64_t x_stride,
                    int64_t inputs, const float *panel, vec out[TILE_ROWS][PANEL_VECTORS]) {
    const float *next = panel + inputs * TILE_COLUMNS;
    int few = tiles < INPUT_LINES;
    int64_t lines = inputs * INPUT_LINES, share = few ? lines : (lines + tiles - 1) / tiles;
    Ahead ahead = {next + index * share * CACHE_LINE, few ? (index ? 0 : inputs) : share};
    switch (count) {
#define CASE(n)                                                                       \
    case n:                                                                           \
        if (few) tile(n, INPUT_LINES, x, x_stride, inputs, panel, ahead, out);        \
        else tile(n, 1, x, x_stride, inputs, panel, ahead, out);                      \
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
    int64_t width = left < TILE_COLUMNS ? left : TILE_COLUMNS;
    int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t row = t * TILE_ROWS;
        int count = rows - row < TILE_ROWS ? (int)(rows - row) : TILE_ROWS;
        vec out[TILE_ROWS][PANEL_VECTORS];
        tile_of(count, t, tiles, x + row * x_stride, x_stride, weight->inputs, panel, out);
        for (int i = 0; i < count; i++) {
            float *to = y + (row + i) * y_stride + first;
            const float *values = (const float *)out[i];
            for (int64_t c = 0; c < width; c++) {
                float value = values[c] + (weight->bias ? weight->bias[first + c] : 0);
                to[c] = add ? to[c] + value : value;
            }
        }
    }
}

#endif
