/* Float32 products on the AMX tile units of recent Intel processors, which multiply bfloat16.
 *
 * Every number is split into three bfloat16 parts, x = x0 + x1 + x2, of 8 bits each, which hold all
 * 24 bits of a float32. Six of the nine products of parts are added up, in float32: those left out
 * are below 2^-24 of the result, so the sum is as exact as a float32 product.
 */
#include "vectors.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TILE 16          /* rows of a tile, and 32-bit words in a row */
#define STEP 32          /* terms of the sum that one tile covers */
#define WORDS (16 * 16)  /* 32-bit words of a tile */
#define PARTS 3

/* Whether the system lets this process use the tile registers. */
int polyopt_has_amx(void) {
    const int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileShape;

static void configure(void) {
    TileShape shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = TILE;
    }
    _tile_loadconfig(&shape);
}

/* A factor of the product: element (i, k) is at data[i * stride + k * step]; one of both is 1. */
typedef struct {
    const float *data;
    int64_t stride, step, rows;
} Factor;

/* Pairs (k, k+1) of both halves as bfloat16 words, and what is left of the numbers. */
INLINE __m512i take_pairs(__m512 *even, __m512 *odd) {
    __m256i e = (__m256i)_mm512_cvtneps_pbh(*even), o = (__m256i)_mm512_cvtneps_pbh(*odd);
    __m512i low = _mm512_cvtepu16_epi32(e), high = _mm512_cvtepu16_epi32(o);
    __m512i top = _mm512_slli_epi32(high, 16);
    *even = _mm512_sub_ps(*even, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    *odd = _mm512_sub_ps(*odd, _mm512_castsi512_ps(top));
    return _mm512_or_si512(low, top);
}

/* 32 numbers in a row as bfloat16, and what is left of them. */
INLINE __m512i take_row(__m512 *first, __m512 *second) {
    __m512i packed = (__m512i)_mm512_cvtne2ps_pbh(*second, *first);
    __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(packed));
    __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(packed, 1));
    *first = _mm512_sub_ps(*first, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    *second = _mm512_sub_ps(*second, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
    return packed;
}

static void transpose(uint32_t *words) {
    __m512i r[16], t[16];
    for (int i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(words + 16 * i);
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(words + 16 * i, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_si512(words + 16 * (i + 4), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_si512(words + 16 * (i + 8), _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_si512(words + 16 * (i + 12), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

/* Split 16 rows of a factor at terms k..k+31 into its three tiles.
 *
 * A left factor's tile has a row per row of the factor; a right factor's has a row per pair of
 * terms.
 */
static void split_tile(const Factor *f, int64_t row, int64_t k, int64_t terms, int right,
                       uint32_t *tiles) {
    int64_t rows = f->rows - row < TILE ? f->rows - row : TILE;
    int64_t count = terms - k < STEP ? terms - k : STEP;
    const float *from = f->data + row * f->stride + k * f->step;
    if (f->step == 1) {
        __mmask16 first = count >= 16 ? 0xffff : (__mmask16)((1u << count) - 1);
        __mmask16 second = count >= 32 ? 0xffff : count <= 16 ? 0 : (__mmask16)((1u << (count - 16)) - 1);
        for (int i = 0; i < TILE; i++) {
            __m512 a = _mm512_setzero_ps(), b = a;
            if (i < rows) {
                a = _mm512_maskz_loadu_ps(first, from + i * f->stride);
                b = _mm512_maskz_loadu_ps(second, from + i * f->stride + 16);
            }
            for (int part = 0; part < PARTS; part++)
                _mm512_storeu_si512(tiles + part * WORDS + 16 * i, take_row(&a, &b));
        }
    } else {
        __mmask16 mask = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
        for (int i = 0; i < TILE; i++) {
            __m512 a = _mm512_setzero_ps(), b = a;
            if (2 * i < count) a = _mm512_maskz_loadu_ps(mask, from + 2 * i * f->step);
            if (2 * i + 1 < count) b = _mm512_maskz_loadu_ps(mask, from + (2 * i + 1) * f->step);
            for (int part = 0; part < PARTS; part++)
                _mm512_storeu_si512(tiles + part * WORDS + 16 * i, take_pairs(&a, &b));
        }
    }
    if ((f->step == 1) == (right != 0))
        for (int part = 0; part < PARTS; part++) transpose(tiles + part * WORDS);
}

INLINE int64_t quotient(int64_t count, int64_t by) { return (count + by - 1) / by; }

#define MOST_ROWS 4096   /* rows of a factor and */
#define MOST_TERMS 2048  /* terms that are split at a time: the work space is bounded by them */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* 32-bit words that the first rows and terms of a factor take when they are split. */
static int64_t split_words(int64_t rows, int64_t terms) {
    return quotient(least(rows, MOST_ROWS), 2 * TILE) * 2 *
           quotient(least(terms, MOST_TERMS), STEP) * PARTS * WORDS;
}

/* 32-bit words of work space for a product of [m, terms] and [n, terms]. */
int64_t polyopt_amx_space(int64_t m, int64_t n, int64_t terms) {
    return split_words(m, terms) + split_words(n, terms);
}

/* A tile of sums into its place in the result; added to what is there if `add`. */
static void copy_out(const float *tile, float *out, int64_t stride, int64_t rows, int64_t columns,
                     const float *bias, int add) {
    if (columns <= 0) return;
    __mmask16 mask = columns >= TILE ? 0xffff : (__mmask16)((1u << columns) - 1);
    __m512 offset = bias ? _mm512_maskz_loadu_ps(mask, bias) : _mm512_setzero_ps();
    for (int64_t i = 0; i < rows && i < TILE; i++) {
        __m512 value = _mm512_add_ps(_mm512_loadu_ps(tile + i * TILE), offset);
        float *to = out + i * stride;
        if (add) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
        _mm512_mask_storeu_ps(to, mask, value);
    }
}

/* Tile registers: 0 to 3 hold 32 x 32 sums, 4 and 5 the left rows, 6 and 7 the right ones. */
#define LOAD(first, second, strip, part)                          \
    do {                                                          \
        _tile_loadd(first, (strip) + (part) * WORDS, 64);         \
        _tile_loadd(second, (strip) + half + (part) * WORDS, 64); \
    } while (0)
#define MULTIPLY()               \
    do {                         \
        _tile_dpbf16ps(0, 4, 6); \
        _tile_dpbf16ps(1, 4, 7); \
        _tile_dpbf16ps(2, 5, 6); \
        _tile_dpbf16ps(3, 5, 7); \
    } while (0)

/* A block of 32 x 32 sums over `steps` tiles of both factors; their lower halves are `half` further. */
static void block(const uint32_t *left, const uint32_t *right, int64_t steps, int64_t half,
                  float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s++) {
        const uint32_t *a = left + s * PARTS * WORDS, *b = right + s * PARTS * WORDS;
        LOAD(4, 5, a, 0);
        LOAD(6, 7, b, 2);
        MULTIPLY();
        LOAD(6, 7, b, 1);
        MULTIPLY();
        LOAD(4, 5, a, 1);
        MULTIPLY();
        LOAD(6, 7, b, 0);
        MULTIPLY();
        LOAD(4, 5, a, 2);
        MULTIPLY();
        LOAD(4, 5, a, 0);
        MULTIPLY();
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + WORDS, 64);
    _tile_stored(2, sums + 2 * WORDS, 64);
    _tile_stored(3, sums + 3 * WORDS, 64);
}

#define CHUNK 24             /* tiles along the sum that are worked through at a time, */
#define CACHED (1 << 20)     /* and bytes of the right factor: what the cache keeps */

/* Split rows first.. and terms begin.. of a factor, each thread a share of the tiles. */
static void split(const Factor *f, int64_t first, int64_t rows, int64_t begin, int64_t terms,
                  int right, uint32_t *tiles) {
    const Factor part = {f->data + first * f->stride + begin * f->step, f->stride, f->step, rows};
    const int64_t steps = quotient(terms, STEP);
#pragma omp for schedule(static)
    for (int64_t t = 0; t < 2 * quotient(rows, 2 * TILE); t++)
        for (int64_t s = 0; s < steps; s++)
            split_tile(&part, t * TILE, s * STEP, terms, right,
                       tiles + (t * steps + s) * PARTS * WORDS);
}

/* The product of two factors that are split, chunk by chunk along the sum. */
static void multiply(const uint32_t *left, int64_t m, const uint32_t *right, int64_t n,
                     int64_t terms, const float *bias, float *out, int64_t out_stride, int add) {
    float sums[4 * WORDS] __attribute__((aligned(64)));
    const int64_t steps = quotient(terms, STEP), half = steps * PARTS * WORDS;
    const int64_t rights = quotient(n, 2 * TILE);
    for (int64_t s = 0; s < steps; s += CHUNK) {
        const int64_t count = least(CHUNK, steps - s), offset = s * PARTS * WORDS;
        const int64_t group = CACHED / (2 * count * PARTS * WORDS * 4);
#pragma omp for schedule(static) collapse(2)
        for (int64_t g = 0; g < quotient(rights, group); g++)
            for (int64_t i = 0; i < quotient(m, 2 * TILE); i++)
                for (int64_t j = g * group; j < least((g + 1) * group, rights); j++) {
                    block(left + 2 * i * half + offset, right + 2 * j * half + offset, count, half,
                          sums);
                    for (int q = 0; q < 4; q++) {
                        int64_t row = 32 * i + TILE * (q / 2), column = 32 * j + TILE * (q % 2);
                        copy_out(sums + q * WORDS, out + row * out_stride + column, out_stride,
                                 m - row, n - column, bias && !s ? bias + column : NULL, add || s);
                    }
                }
    }
}

/* out [m, n] (+)= left [m, terms] right [n, terms]^T + bias. */
void polyopt_amx_product(const float *left, int64_t left_stride, int64_t left_step, int64_t m,
                         const float *right, int64_t right_stride, int64_t right_step, int64_t n,
                         int64_t terms, const float *bias, float *out, int64_t out_stride, int add,
                         uint32_t *space, int threads) {
    const Factor a = {left, left_stride, left_step, m}, b = {right, right_stride, right_step, n};
    uint32_t *split_a = space, *split_b = space + split_words(m, terms);
#pragma omp parallel num_threads(threads)
    {
        configure();
        for (int64_t t = 0; t < terms; t += MOST_TERMS) {
            const int64_t sum = least(MOST_TERMS, terms - t);
            for (int64_t j = 0; j < n; j += MOST_ROWS) {
                const int64_t columns = least(MOST_ROWS, n - j);
                split(&b, j, columns, t, sum, 1, split_b);
                for (int64_t i = 0; i < m; i += MOST_ROWS) {
                    const int64_t rows = least(MOST_ROWS, m - i);
                    if (j == 0 || m > MOST_ROWS) split(&a, i, rows, t, sum, 0, split_a);
                    multiply(split_a, rows, split_b, columns, sum, bias && !t ? bias + j : NULL,
                             out + i * out_stride + j, out_stride, add || t);
                }
            }
        }
        _tile_release();
    }
}

#else

int polyopt_has_amx(void) { return 0; }

int64_t polyopt_amx_space(int64_t m, int64_t n, int64_t terms) { return 0 * (m + n + terms); }

void polyopt_amx_product(void) {}

#endif
