/* What stands between the products of a Llama-like block, forward and backward, for training.
 *
 * Rows are tokens. Activations may be read from a record, in which token i is row places[i];
 * without places it is row i. Sums over tokens go by CHUNKS runs of them, added up in order, so they
 * don't depend on the number of threads.
 */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "norms.h"

#define CHUNKS 32

INLINE int64_t place_of(const int64_t *places, int64_t i) { return places ? places[i] : i; }

/* out [tokens, width] = rms_norm(x). */
void polyopt_norm(const float *x, const int64_t *places, int64_t tokens, int64_t width,
                  const float *weight, double eps, float *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++)
        rms_norm(x + place_of(places, t) * width, width, weight, eps, out + t * width);
}

/* dx += what dy says of x, where y = x / rms(x) * weight, and dweight += what it says of weight. */
static void norm_slope(const float *x, int64_t count, const float *weight, double eps,
                       const float *dy, float *dx, float *dweight) {
    float scale = inverse_rms(x, count, eps), along = 0;
    vec sums = splat(0);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sums += load(dy + i) * load(weight + i) * load(x + i);
    along = sum_of(sums);
    for (; i < count; i++) along += dy[i] * weight[i] * x[i];
    float back = along * scale * scale * scale / (float)count;
    for (i = 0; i + LANES <= count; i += LANES) {
        vec from = load(x + i), slope = load(dy + i);
        store(dweight + i, load(dweight + i) + slope * from * scale);
        store(dx + i, load(dx + i) + slope * load(weight + i) * scale - from * back);
    }
    for (; i < count; i++) {
        dweight[i] += dy[i] * x[i] * scale;
        dx[i] += dy[i] * weight[i] * scale - x[i] * back;
    }
}

/* total [width] = the sum of `parts` rows. */
static void add_up(const float *rows, int64_t parts, int64_t width, float *total) {
    memset(total, 0, sizeof(float) * (size_t)width);
    for (int64_t p = 0; p < parts; p++)
        for (int64_t i = 0; i < width; i++) total[i] += rows[p * width + i];
}

/* gradient [tokens, width] += the share of x in what dy says; dweight [width] is the weight's.
 * `space` has room for CHUNKS rows. */
void polyopt_norm_backward(const float *x, const int64_t *places, int64_t tokens, int64_t width,
                           const float *weight, double eps, const float *dy, float *gradient,
                           float *dweight, float *space, int threads) {
    memset(space, 0, sizeof(float) * (size_t)(CHUNKS * width));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < CHUNKS; c++)
        for (int64_t t = tokens * c / CHUNKS; t < tokens * (c + 1) / CHUNKS; t++)
            norm_slope(x + place_of(places, t) * width, width, weight, eps, dy + t * width,
                       gradient + t * width, space + c * width);
    add_up(space, CHUNKS, width, dweight);
}

INLINE vec load_some(const float *p, int64_t count) {
    vec v = splat(0);
    memcpy(&v, p, sizeof(float) * (size_t)count);
    return v;
}

INLINE void store_some(float *p, vec v, int64_t count) { memcpy(p, &v, sizeof(float) * (size_t)count); }

/* 1 / (1 + exp(-x)). */
INLINE vec sigmoid_of(vec x) {
    vec minus = -x;
    return 1 / (1 + exp_of(select_of(minus > splat(88), splat(88), minus)));
}

/* `count` is a constant after inlining wherever it is a whole vector. */
INLINE void gate_part(const float *gates, const float *ups, float *out, int64_t count) {
    vec gate = load_some(gates, count);
    store_some(out, gate * sigmoid_of(gate) * load_some(ups, count), count);
}

INLINE void gate_slopes(const float *gates, const float *ups, float *d, float *dgates, float *dups,
                        int64_t count) {
    vec gate = load_some(gates, count), up = load_some(ups, count), slope = load_some(d, count);
    vec open = sigmoid_of(gate), silu = gate * open;
    store_some(dups, slope * silu, count);
    store_some(dgates, slope * up * (open + silu * (1 - open)), count);
    store_some(d, silu * up, count);
}

/* out [tokens, width] = silu(gate) * up, of rows of gate and up side by side. */
void polyopt_gated(const float *gate_up, const int64_t *places, int64_t tokens, int64_t width,
                   float *out, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *gates = gate_up + place_of(places, t) * 2 * width, *ups = gates + width;
        float *to = out + t * width;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) gate_part(gates + i, ups + i, to + i, LANES);
        if (i < width) gate_part(gates + i, ups + i, to + i, width - i);
    }
}

/* From d [tokens, width], the slope of the gated product: its value in place of d, and the slopes
 * of gate and up side by side. */
void polyopt_gated_backward(const float *gate_up, const int64_t *places, int64_t tokens,
                            int64_t width, float *d, float *slopes, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *gates = gate_up + place_of(places, t) * 2 * width, *ups = gates + width;
        float *of = d + t * width, *dgates = slopes + t * 2 * width, *dups = dgates + width;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            gate_slopes(gates + i, ups + i, of + i, dgates + i, dups + i, LANES);
        if (i < width) gate_slopes(gates + i, ups + i, of + i, dgates + i, dups + i, width - i);
    }
}

/* H query heads and K key-value heads of D numbers; `room` is D in whole vectors. */
typedef struct {
    int64_t query_heads, key_heads, dim, room;
    double eps, scaling;
    const float *query_norm, *key_norm; /* [D] or NULL */
    const float *rotary;                /* [positions, D / 2] of (cos, sin) */
} Turning;

INLINE int64_t all_heads(const Turning *s) { return s->query_heads + 2 * s->key_heads; }
INLINE float scale_of(const Turning *s, int64_t head) {
    return head < s->query_heads ? (float)s->scaling : 1;
}
INLINE const float *norm_of(const Turning *s, int64_t head) {
    return head < s->query_heads ? s->query_norm : s->key_norm;
}

/* Queries (scaled) and keys, normed if the model does that and turned by their positions, and
 * values: from rows [H + 2K, D] to rows [H + 2K, room]. Partners i and i + D / 2 become neighbours,
 * what is beyond D is 0. */
void polyopt_turn(const Turning *s, const float *qkv, int64_t tokens, const int64_t *positions,
                  float *heads, int threads) {
    const int64_t dim = s->dim, half = dim / 2, turned = s->query_heads + s->key_heads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const float *rotation = s->rotary + positions[t] * dim;
        float normed[dim];
        for (int64_t h = 0; h < all_heads(s); h++) {
            const float *from = qkv + (t * all_heads(s) + h) * dim;
            float *to = heads + (t * all_heads(s) + h) * s->room, scale = scale_of(s, h);
            memset(to + dim, 0, sizeof(float) * (size_t)(s->room - dim));
            if (h >= turned) {
                memcpy(to, from, sizeof(float) * (size_t)dim);
                continue;
            }
            if (norm_of(s, h)) {
                rms_norm(from, dim, norm_of(s, h), s->eps, normed);
                from = normed;
            }
            for (int64_t d = 0; d < half; d++) {
                float a = from[d], b = from[d + half];
                float cosine = rotation[2 * d] * scale, sine = rotation[2 * d + 1] * scale;
                to[2 * d] = a * cosine - b * sine;
                to[2 * d + 1] = b * cosine + a * sine;
            }
        }
    }
}

/* The way back: slopes of what went in, from those of queries [tokens, H, room], keys and values
 * [tokens, K, room]. `qkv` (by places) and `space` (CHUNKS times 2 D) are read only with norms,
 * whose slopes [2, D] go to dnorms. */
void polyopt_turn_backward(const Turning *s, const float *qkv, const int64_t *places,
                           int64_t tokens, const int64_t *positions, const float *queries,
                           const float *keys, const float *values, float *dqkv, float *dnorms,
                           float *space, int threads) {
    const int64_t dim = s->dim, half = dim / 2, heads = all_heads(s);
    const int64_t turned = s->query_heads + s->key_heads;
    if (s->query_norm) memset(space, 0, sizeof(float) * (size_t)(CHUNKS * 2 * dim));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t c = 0; c < CHUNKS; c++)
        for (int64_t t = tokens * c / CHUNKS; t < tokens * (c + 1) / CHUNKS; t++) {
            const float *rotation = s->rotary + positions[t] * dim;
            float slopes[dim];
            for (int64_t h = 0; h < heads; h++) {
                float *to = dqkv + (t * heads + h) * dim, scale = scale_of(s, h);
                if (h >= turned) {
                    const float *from = values + (t * s->key_heads + h - turned) * s->room;
                    memcpy(to, from, sizeof(float) * (size_t)dim);
                    continue;
                }
                const float *from = h < s->query_heads
                    ? queries + (t * s->query_heads + h) * s->room
                    : keys + (t * s->key_heads + h - s->query_heads) * s->room;
                float *into = norm_of(s, h) ? slopes : to;
                for (int64_t d = 0; d < half; d++) {
                    float a = from[2 * d], b = from[2 * d + 1];
                    float cosine = rotation[2 * d] * scale, sine = rotation[2 * d + 1] * scale;
                    into[d] = a * cosine + b * sine;
                    into[d + half] = b * cosine - a * sine;
                }
                if (norm_of(s, h)) {
                    const float *x = qkv + (place_of(places, t) * heads + h) * dim;
                    memset(to, 0, sizeof(float) * (size_t)dim);
                    norm_slope(x, dim, norm_of(s, h), s->eps, slopes, to,
                               space + (2 * c + (h >= s->query_heads)) * dim);
                }
            }
        }
    if (s->query_norm) add_up(space, CHUNKS, 2 * dim, dnorms);
}
