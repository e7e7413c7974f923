/* y = x W^T + b in float32, for weights packed in panels of TILE_COLUMNS outputs.
 *
 * A panel holds, for each input k in turn, the weights of its TILE_COLUMNS outputs side by side
 * (zeros beyond the last output), so one row of x times one panel reads memory in order.
 */
#ifndef POLYOPT_PRODUCTS_H
#define POLYOPT_PRODUCTS_H

#include "vectors.h"

#define PANEL_VECTORS (TILE_COLUMNS / LANES)

typedef struct {
    const float *panels;
    const float *bias; /* or NULL */
    int64_t inputs, outputs;
} Weight;

INLINE int64_t panels_of(int64_t outputs) { return (outputs + TILE_COLUMNS - 1) / TILE_COLUMNS; }

/* `rows` (a constant after inlining) rows of x times one panel. */
INLINE void tile(const int rows, const float *x, int64_t x_stride, int64_t inputs,
                 const float *panel, vec out[TILE_ROWS][PANEL_VECTORS]) {
    vec sum[TILE_ROWS][PANEL_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL_VECTORS; j++) sum[i][j] = splat(0);
    for (int64_t k = 0; k < inputs; k++) {
        vec w[PANEL_VECTORS];
        for (int j = 0; j < PANEL_VECTORS; j++) w[j] = load(panel + k * TILE_COLUMNS + j * LANES);
        for (int i = 0; i < rows; i++) {
            vec a = splat(x[i * x_stride + k]);
            for (int j = 0; j < PANEL_VECTORS; j++) sum[i][j] += a * w[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL_VECTORS; j++) out[i][j] = sum[i][j];
}

/* Rows of x times one panel, into columns of y; added to what is there if `add`. */
static void panel_product(const Weight *weight, int64_t index, const float *x, int64_t rows,
                          int64_t x_stride, float *y, int64_t y_stride, int add) {
    const float *panel = weight->panels + index * weight->inputs * TILE_COLUMNS;
    int64_t first = index * TILE_COLUMNS, left = weight->outputs - first;
    int64_t width = left < TILE_COLUMNS ? left : TILE_COLUMNS;
    for (int64_t row = 0; row < rows; row += TILE_ROWS) {
        int count = rows - row < TILE_ROWS ? (int)(rows - row) : TILE_ROWS;
        const float *from = x + row * x_stride;
        vec out[TILE_ROWS][PANEL_VECTORS];
        switch (count) {
#define CASE(n) \
    case n: tile(n, from, x_stride, weight->inputs, panel, out); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if TILE_ROWS == 8
            CASE(7) CASE(8)
#endif
#undef CASE
        }
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
