/* Vectors of floats of the machine's width, by the compiler's vector extensions. */
#ifndef POLYOPT_VECTORS_H
#define POLYOPT_VECTORS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

#if LANES == 4
#define TILE_COLUMNS (2 * LANES)
#define TILE_ROWS 6
#elif LANES == 8
#define TILE_COLUMNS (2 * LANES)
#define TILE_ROWS 6
#else
#define TILE_COLUMNS (3 * LANES)
#define TILE_ROWS 8
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }

INLINE float sum_of(vec v) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += v[i];
    return total;
}

INLINE float max_of(vec v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}

/* Lanes of a where the comparison `mask` holds (all bits set), of b elsewhere. */
INLINE vec select_of(ivec mask, vec a, vec b) {
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

INLINE vec larger(vec a, vec b) { return select_of(a > b, a, b); }

/* exp(x) with a relative error below 2e-7; 0 below -87, NaN of NaN; x must not pass 88. */
INLINE vec exp_of(vec x) {
    const float log2e = 1.44269504088896341f, magic = 12582912.0f; /* 1.5 * 2^23 */
    vec bounded = select_of(x < splat(-87.0f), splat(-87.0f), x);
    vec shifted = bounded * log2e + magic;
    vec n = shifted - magic;
    vec r = bounded - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ivec power = ((ivec)shifted - (ivec)splat(magic) + 127) << 23;
    vec result = p * (vec)power;
    return select_of(x < splat(-87.0f), splat(0), result);
}

#endif
