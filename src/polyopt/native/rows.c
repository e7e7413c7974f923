/* Passes over rows of logits: what log-softmax, its gradient, and drawing a token need. */
#include <math.h>

#include "vectors.h"

INLINE vec load_part(const float *p, int64_t count, float fill) {
    vec v = splat(fill);
    memcpy(&v, p, sizeof(float) * (size_t)count);
    return v;
}

static float row_max(const float *z, int64_t columns, float scale) {
    vec most = splat(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= columns; i += LANES) most = larger(load(z + i) * scale, most);
    if (i < columns) most = larger(load_part(z + i, columns - i, -INFINITY) * scale, most);
    return max_of(most);
}

#define BLOCK 256 /* columns whose weights are summed in float32 before they go into a double */

/* What is known of the softmax of a row of z * scale after some of its columns: the largest entry,
 * the sum of the weights w = exp(z * scale - most), the sum of (z * scale - most) * w, and the
 * target's entry. */
typedef struct {
    double most, weight, weighted, target;
} RowSums;

/* Take in columns first.. of all rows; entropies need `weighted`. */
void polyopt_softmax_sums(const float *z, int64_t rows, int64_t columns, int64_t first,
                          const int64_t *targets, float scale, int weighted, RowSums *of,
                          int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = z + r * columns;
        RowSums *sums = of + r;
        float most = row_max(row, columns, scale);
        if (most < sums->most) most = (float)sums->most;
        if (sums->weight > 0) {
            double shift = sums->most - most, shrink = exp(shift);
            sums->weighted = shrink * (sums->weighted + shift * sums->weight);
            sums->weight *= shrink;
        }
        sums->most = most;
        for (int64_t start = 0; start < columns; start += BLOCK) {
            int64_t end = start + BLOCK < columns ? start + BLOCK : columns;
            vec weight = splat(0), product = splat(0);
            for (int64_t i = start; i < end; i += LANES) {
                vec x = i + LANES <= end ? load(row + i) : load_part(row + i, end - i, -INFINITY);
                vec shifted = x * scale - most, w = exp_of(shifted);
                weight += w;
                if (weighted) product += select_of(w > splat(0), shifted, splat(0)) * w;
            }
            sums->weight += sum_of(weight);
            sums->weighted += sum_of(product);
        }
        int64_t target = targets[r] - first;
        if (target >= 0 && target < columns) sums->target = row[target] * scale;
    }
}

/* dL/dz of columns first.. in place of z, from the gradients of log p and of the entropy (or NULL):
 * scale * (grad_logp * (onehot - p) - grad_entropy * p * (log p + entropy)). */
void polyopt_softmax_gradient(float *z, int64_t rows, int64_t columns, int64_t first,
                              const int64_t *targets, float scale, const float *norm,
                              const float *entropy, const float *grad_logp,
                              const float *grad_entropy, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        float *row = z + r * columns;
        float slope = grad_logp ? grad_logp[r] * scale : 0;
        float bend = grad_entropy ? grad_entropy[r] * scale : 0;
        float base = slope + (grad_entropy ? bend * entropy[r] : 0);
        for (int64_t i = 0; i < columns; i += LANES) {
            int64_t count = columns - i < LANES ? columns - i : LANES;
            vec x = count == LANES ? load(row + i) : load_part(row + i, count, -INFINITY);
            vec lp = x * scale - norm[r], p = exp_of(lp);
            vec d = -p * (base + bend * select_of(p > splat(0), lp, splat(0)));
            memcpy(row + i, &d, sizeof(float) * (size_t)count);
        }
        int64_t target = targets[r] - first;
        if (target >= 0 && target < columns) row[target] += slope;
    }
}

/* One token per row of z * scale, by inverting the cumulative sum of its weights at u in [0, 1).
 *
 * scale 0 takes the most likely token, with log p at temperature 1. A row whose logits are not
 * finite gets token -1. */
void polyopt_draw(const float *z, int64_t rows, int64_t columns, const float *scales,
                  const double *uniforms, int64_t *tokens, double *logp, double *entropy,
                  int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const float *row = z + r * columns;
        int greedy = scales[r] == 0;
        float scale = greedy ? 1 : scales[r], most = row_max(row, columns, scale);
        double total = 0, weighted = 0;
        int64_t blocks = (columns + BLOCK - 1) / BLOCK;
        double sums[blocks];
        for (int64_t b = 0; b < blocks; b++) {
            int64_t end = (b + 1) * BLOCK < columns ? (b + 1) * BLOCK : columns;
            vec weight = splat(0), product = splat(0);
            for (int64_t i = b * BLOCK; i < end; i += LANES) {
                vec x = i + LANES <= end ? load(row + i) : load_part(row + i, end - i, -INFINITY);
                vec shifted = x * scale - most, w = exp_of(shifted);
                weight += w;
                if (entropy) product += select_of(w > splat(0), shifted, splat(0)) * w;
            }
            sums[b] = sum_of(weight);
            total += sums[b];
            weighted += sum_of(product);
        }
        tokens[r] = -1;
        if (!(total > 0 && total < INFINITY) || !isfinite(most)) continue;
        int64_t token = 0;
        if (greedy) {
            while (row[token] * scale != most) token++;
        } else {
            double target = uniforms[r] * total, passed = 0;
            int64_t b = 0;
            while (b + 1 < blocks && passed + sums[b] <= target) passed += sums[b++];
            int64_t end = (b + 1) * BLOCK < columns ? (b + 1) * BLOCK : columns;
            token = -1;
            for (int64_t i = b * BLOCK; i < end && (token < 0 || passed <= target); i += LANES) {
                int64_t count = end - i < LANES ? end - i : LANES;
                vec x = load_part(row + i, count, -INFINITY), w = exp_of(x * scale - most);
                for (int64_t j = 0; j < count && (token < 0 || passed <= target); j++)
                    if (w[j] > 0) {
                        token = i + j;
                        passed += w[j];
                    }
            }
        }
        tokens[r] = token;
        logp[r] = (double)(row[token] * scale - most) - log(total);
        if (entropy) entropy[r] = log(total) - weighted / total;
    }
}
