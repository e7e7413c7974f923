/* Root-mean-square norms of rows of floats. */
#ifndef POLYOPT_NORMS_H
#define POLYOPT_NORMS_H

#include <math.h>

#include "vectors.h"

/* 1 / rms(x). */
static float inverse_rms(const float *x, int64_t count, double eps) {
    vec squares = splat(0);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) squares += load(x + i) * load(x + i);
    float total = sum_of(squares);
    for (; i < count; i++) total += x[i] * x[i];
    return 1 / sqrtf(total / (float)count + (float)eps);
}

/* out = x / rms(x), times the weight. */
static void rms_norm(const float *x, int64_t count, const float *weight, double eps, float *out) {
    float scale = inverse_rms(x, count, eps);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < count; i++) out[i] = x[i] * scale * weight[i];
}

#endif
