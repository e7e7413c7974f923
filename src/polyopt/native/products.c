#include "products.h"

int64_t polyopt_lanes(void) { return LANES; }

/* Floats of a packed weight. */
int64_t polyopt_packed_size(int64_t outputs, int64_t inputs) {
    return panels_of(outputs) * TILE_COLUMNS * inputs;
}

#define PACK_INPUTS 64 /* inputs of a panel that are written together: they stay in the cache */

void polyopt_pack(const float *weight, int64_t outputs, int64_t inputs, float *panels, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < panels_of(outputs); p++)
        for (int64_t start = 0; start < inputs; start += PACK_INPUTS) {
            int64_t count = inputs - start < PACK_INPUTS ? inputs - start : PACK_INPUTS;
            float *panel = panels + (p * inputs + start) * TILE_COLUMNS;
            for (int64_t c = 0; c < TILE_COLUMNS; c++) {
                int64_t output = p * TILE_COLUMNS + c;
                const float *row = weight + output * inputs + start;
                for (int64_t k = 0; k < count; k++)
                    panel[k * TILE_COLUMNS + c] = output < outputs ? row[k] : 0;
            }
        }
}

#define ROW_BLOCK 256 /* rows that go over all panels together: they stay in the cache */

/* y [rows, outputs] = x [rows, inputs] W^T + b. */
void polyopt_product(const float *x, int64_t rows, const float *panels, const float *bias,
                     int64_t inputs, int64_t outputs, float *y, int threads) {
    Weight weight = {panels, bias, inputs, outputs};
#pragma omp parallel for num_threads(threads) collapse(2) schedule(static)
    for (int64_t row = 0; row < rows; row += ROW_BLOCK)
        for (int64_t p = 0; p < panels_of(outputs); p++) {
            int64_t count = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
            panel_product(&weight, p, x + row * inputs, count, inputs, y + row * outputs, outputs, 0);
        }
}
