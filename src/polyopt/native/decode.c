/* One decoding step of a Llama-like model for a batch of rows: one new token each. */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attention.h"
#include "norms.h"
#include "products.h"

typedef struct {
    const float *input_norm, *mlp_norm;
    const float *head_norm; /* [query heads + key heads, D] or NULL */
    Weight qkv, out, gate, up, down;
} Layer;

typedef struct {
    int64_t layers, hidden, query_heads, key_heads, head_dim, intermediate;
    double eps, scaling;
    const float *embedding, *norm;
    const Layer *blocks;
    Weight head;
} Model;

/* One sequence: the pages of its prompt, which other rows may share, and of its completion. */
typedef struct {
    float *const *prompt, *const *own;
    int64_t prompt_length, length; /* `length` tokens of the completion are there already */
} Row;

/* Where one layer's activations are kept: [places, ...], see models/activations.py. */
typedef struct {
    float *entered, *qkv, *heads, *norm, *attended, *between, *gate_up;
} LayerRecord;

typedef struct {
    const LayerRecord *layers;
    float *last;
} Record;

/* Rows in an order in which those of a prompt are neighbours, cut into tiles of one prompt each:
 * tile t holds rows order[tiles[t]] to order[tiles[t + 1] - 1]. */
typedef struct {
    int64_t rows, tiles, most_rows, most_columns; /* of a tile; of a row, in whole pages */
    const int64_t *tokens, *order, *starts;
    const Row *sequences;
    const float *rotary; /* [positions, D / 2] of (cos, sin) */
    const Record *record; /* or NULL */
    const int64_t *places; /* each row's in the record, or -1 */
} Batch;

typedef struct {
    float *hidden, *normed, *qkv, *attended, *norms, *gate, *up, *gated, *threads;
    int64_t gate_stride, thread_floats;
} Work;

INLINE int64_t heads_of(const Model *m) { return m->query_heads + 2 * m->key_heads; }

static int64_t thread_floats(const Model *m, const Batch *b) {
    int64_t queries = b->most_rows * (m->query_heads / m->key_heads);
    return padded(queries * (m->head_dim + padded(m->head_dim) + b->most_columns));
}

/* Lay the work space out over `memory`; its size in floats. */
static int64_t lay_out(const Model *m, const Batch *b, int threads, float *memory, Work *w) {
    int64_t at = 0, rows = b->rows;
    w->gate_stride = panels_of(m->intermediate) * TILE_COLUMNS;
    w->thread_floats = thread_floats(m, b);
#define PART(name, count) w->name = memory + at, at += padded(count)
    PART(hidden, rows * m->hidden);
    PART(normed, rows * m->hidden);
    PART(qkv, rows * heads_of(m) * m->head_dim);
    PART(attended, rows * m->query_heads * m->head_dim);
    PART(norms, rows * m->query_heads);
    PART(gate, rows * w->gate_stride);
    PART(up, rows * w->gate_stride);
    PART(gated, rows * w->gate_stride);
    PART(threads, threads * w->thread_floats);
#undef PART
    return at;
}

int64_t polyopt_step_floats(const Model *m, const Batch *b, int threads) {
    Work w;
    return lay_out(m, b, threads, NULL, &w);
}

int64_t polyopt_page_positions(void) { return PAGE; }

int64_t polyopt_page_floats(int64_t layers, int64_t heads, int64_t dim) {
    return layers * heads * head_floats(dim) + LANES;
}

/* Write `count` tokens' keys and values [K, count, D] of one layer at the start of a sequence. */
void polyopt_write_pages(float *const *pages, int64_t layer, int64_t heads, int64_t count,
                         int64_t dim, const float *keys, const float *values) {
    for (int64_t h = 0; h < heads; h++)
        for (int64_t t = 0; t < count; t++) {
            float *head = pages[t / PAGE] + (layer * heads + h) * head_floats(dim);
            store_key(head, t % PAGE, keys + (h * count + t) * dim, dim);
            store_value(head, t % PAGE, values + (h * count + t) * dim, dim);
        }
}

INLINE int64_t kept(const Batch *b, int64_t row) { return b->record ? b->places[row] : -1; }

INLINE void copy(float *to, const float *from, int64_t count) {
    memcpy(to, from, sizeof(float) * (size_t)count);
}

/* Norms of the stream, which is kept in `record` [places, hidden] if there is one. */
static void norm_rows(const Model *m, const Batch *b, const float *weight, float *record, Work *w) {
    int64_t width = m->hidden;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < b->rows; r++) {
        const float *row = w->hidden + r * width;
        rms_norm(row, width, weight, m->eps, w->normed + r * width);
        if (kept(b, r) >= 0) copy(record + kept(b, r) * width, row, width);
    }
}

/* y [rows, outputs] (+)= x [rows, inputs] W^T, the threads sharing the panels. */
static void project(const Weight *weight, const float *x, int64_t rows, int64_t x_stride, float *y,
                    int add) {
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels_of(weight->outputs); p++)
        panel_product(weight, p, x, rows, x_stride, y, weight->outputs, add);
}

/* gated = silu(gate) * up, in columns of whole vectors. */
static void gated_panels(const Layer *layer, const Model *m, int64_t rows, Work *w) {
    int64_t stride = w->gate_stride;
#pragma omp for schedule(static)
    for (int64_t p = 0; p < panels_of(m->intermediate); p++) {
        panel_product(&layer->gate, p, w->normed, rows, m->hidden, w->gate, stride, 0);
        panel_product(&layer->up, p, w->normed, rows, m->hidden, w->up, stride, 0);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < TILE_COLUMNS; c += LANES) {
                int64_t at = r * stride + p * TILE_COLUMNS + c;
                vec gate = load(w->gate + at), minus = -gate;
                vec decay = exp_of(select_of(minus > splat(88), splat(88), minus));
                store(w->gated + at, gate / (1 + decay) * load(w->up + at));
            }
    }
}

/* Keep gate and up side by side. */
static void keep_gates(const Model *m, const Batch *b, float *record, const Work *w) {
    int64_t width = m->intermediate;
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < b->rows; r++) {
        if (kept(b, r) < 0) continue;
        float *to = record + kept(b, r) * 2 * width;
        copy(to, w->gate + r * w->gate_stride, width);
        copy(to + width, w->up + r * w->gate_stride, width);
    }
}

/* Keep heads as they are before their norm, partners apart as in the model. */
static void keep_raw(const Model *m, const Batch *b, float *record, const Work *w) {
    int64_t dim = m->head_dim, half = dim / 2, width = heads_of(m) * dim;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < b->rows; r++) {
        if (kept(b, r) < 0) continue;
        const float *from = w->qkv + r * width;
        float *to = record + kept(b, r) * width;
        for (int64_t h = 0; h < width; h += dim)
            for (int64_t d = 0; d < half; d++) {
                to[h + d] = from[h + 2 * d];
                to[h + d + half] = from[h + 2 * d + 1];
            }
    }
}

/* Keep turned heads, their attention's output, and the logsumexp of its scores. */
static void keep_attention(const Model *m, const Batch *b, const LayerRecord *record,
                           const Work *w) {
    int64_t dim = m->head_dim, room = padded(dim), heads = heads_of(m);
    int64_t queries = m->query_heads, width = queries * dim;
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < b->rows; r++) {
        int64_t place = kept(b, r);
        if (place < 0) continue;
        for (int64_t h = 0; h < heads; h++) {
            float *to = record->heads + (place * heads + h) * room;
            copy(to, w->qkv + (r * heads + h) * dim, dim);
            memset(to + dim, 0, sizeof(float) * (size_t)(room - dim));
        }
        copy(record->attended + place * width, w->attended + r * width, width);
        copy(record->norm + place * queries, w->norms + r * queries, queries);
    }
}

/* Norm (if there is one) and rotate one head in place; partners are neighbours. */
static void turn(const Model *m, const Layer *layer, const float *rotation, int64_t index,
                 float scale, float *head) {
    int64_t dim = m->head_dim;
    if (layer->head_norm) rms_norm(head, dim, layer->head_norm + index * dim, m->eps, head);
    for (int64_t d = 0; d < dim; d += 2) {
        float a = head[d], b = head[d + 1], c = rotation[d] * scale, s = rotation[d + 1] * scale;
        head[d] = a * c - b * s;
        head[d + 1] = a * s + b * c;
    }
}

/* A row's queries of one key-value head, turned and scaled; its new key and value are stored. */
static void take_in(const Model *m, const Layer *layer, int64_t index, const Batch *b, int64_t row,
                    int64_t head, Work *w, float *queries) {
    const Row *sequence = b->sequences + row;
    int64_t dim = m->head_dim, share = m->query_heads / m->key_heads, at = sequence->length;
    float *heads = w->qkv + row * heads_of(m) * dim;
    const float *rotation = b->rotary + (sequence->prompt_length + at) * dim;
    float *key = heads + (m->query_heads + head) * dim;
    copy(queries, heads + head * share * dim, share * dim);
    for (int64_t g = 0; g < share; g++)
        turn(m, layer, rotation, head * share + g, (float)m->scaling, queries + g * dim);
    turn(m, layer, rotation, m->query_heads + head, 1, key);
    float *page = sequence->own[at / PAGE] + (index * m->key_heads + head) * head_floats(dim);
    store_key(page, at % PAGE, key, dim);
    store_value(page, at % PAGE, key + m->key_heads * dim, dim);
    if (kept(b, row) >= 0) copy(heads + head * share * dim, queries, share * dim);
}

/* softmax of the scores on prompt and completion; one over the sum is taken out of the weights.
 * `norm` is the scores' logsumexp. */
static float soften(float *scores, int64_t prompt, int64_t own, float *norm) {
    float *rest = scores + pages_of(prompt) * PAGE;
    int64_t end = blank(scores, prompt), own_end = blank(rest, own);
    float most = max_of(largest(rest, own_end, largest(scores, end, splat(-INFINITY))));
    vec total = exponentials(scores, end, most, splat(0));
    float sum = sum_of(exponentials(rest, own_end, most, total));
    *norm = most + logf(sum);
    return 1 / sum;
}

INLINE int64_t in_page(int64_t length, int64_t page) {
    return length - page * PAGE < PAGE ? length - page * PAGE : PAGE;
}

/* A sequence of `length` positions, seen by one head of one layer. */
typedef struct {
    float *const *pages;
    int64_t length, offset, dim; /* where the head is in a page */
} View;

INLINE View view_of(const Model *m, int64_t layer, int64_t head, float *const *pages,
                    int64_t length) {
    int64_t offset = (layer * m->key_heads + head) * head_floats(m->head_dim);
    return (View){pages, length, offset, m->head_dim};
}

INLINE void fetch(const float *from, int64_t floats) {
    for (int64_t i = 0; i < floats; i += CACHE_LINE) __builtin_prefetch(from + i, 0, 2);
}

/* Scores of queries on a sequence; meanwhile the next one's keys are fetched. */
static void score_pages(View v, View next, const float *queries, int64_t count, float *scores,
                        int64_t stride) {
    for (int64_t p = 0; p < pages_of(v.length); p++) {
        if (p < pages_of(next.length))
            fetch(next.pages[p] + next.offset, padded(in_page(next.length, p)) * v.dim);
        score_page(queries, count, in_page(v.length, p), v.dim, v.pages[p] + v.offset,
                   scores + p * PAGE, stride);
    }
}

/* out [count, D'] += weights [count, length] times the sequence's values; meanwhile the next one's
 * are fetched. */
static void weigh_pages(View v, View next, const float *weights, int64_t stride, int64_t count,
                        float *out) {
    for (int64_t p = 0; p < pages_of(v.length); p++) {
        if (p < pages_of(next.length))
            fetch(next.pages[p] + next.offset + PAGE * v.dim,
                  in_page(next.length, p) * v.dim);
        add_values(weights + p * PAGE, stride, count, in_page(v.length, p), v.dim,
                   v.pages[p] + v.offset, out);
    }
}

/* The completion that is read after row i of a tile: the next row's, or the first row's by the next
 * head. */
INLINE View view_after(const Model *m, int64_t layer, int64_t head, const Batch *b,
                       const int64_t *order, int64_t rows, int64_t i) {
    int64_t wraps = i + 1 == rows, last = head + wraps == m->key_heads;
    const Row *row = b->sequences + order[wraps ? 0 : i + 1];
    return view_of(m, layer, head + wraps, row->own, last ? 0 : row->length);
}

/* Attention of a tile of rows on one key-value head. */
static void attend(const Model *m, int64_t index, const Batch *b, int64_t tile, int64_t head,
                   Work *w, float *memory) {
    const Layer *layer = m->blocks + index;
    int64_t dim = m->head_dim, width = padded(dim), share = m->query_heads / m->key_heads;
    int64_t rows = b->starts[tile + 1] - b->starts[tile], stride = b->most_columns;
    const int64_t *order = b->order + b->starts[tile];
    const Row *lead = b->sequences + order[0];
    int64_t prompt = lead->prompt_length, queries = rows * share;
    float *query = memory, *out = query + queries * dim, *scores = out + queries * width;
    for (int64_t i = 0; i < rows; i++)
        take_in(m, layer, index, b, order[i], head, w, query + i * share * dim);
    memset(out, 0, sizeof(float) * (size_t)(queries * width));
    View shared = view_of(m, index, head, lead->prompt, prompt), none = {0};
    score_pages(shared, none, query, queries, scores, stride);
    float scales[queries];
    for (int64_t i = 0; i < rows; i++) {
        const Row *row = b->sequences + order[i];
        float *own = scores + i * share * stride + pages_of(prompt) * PAGE;
        float *part = out + i * share * width;
        View v = view_of(m, index, head, row->own, row->length + 1);
        View next = view_after(m, index, head, b, order, rows, i);
        float *norms = w->norms + order[i] * m->query_heads + head * share;
        score_pages(v, next, query + i * share * dim, share, own, stride);
        for (int64_t q = i * share; q < (i + 1) * share; q++)
            scales[q] = soften(scores + q * stride, prompt, v.length, norms + q - i * share);
        weigh_pages(v, next, own, stride, share, part);
    }
    weigh_pages(shared, none, scores, stride, queries, out);
    for (int64_t i = 0; i < rows; i++) {
        float *to = w->attended + (order[i] * m->query_heads + head * share) * dim;
        for (int64_t q = 0; q < share; q++)
            for (int64_t d = 0; d < dim; d++)
                to[q * dim + d] = out[(i * share + q) * width + d] * scales[i * share + q];
    }
}

static void attend_all(const Model *m, int64_t index, const Batch *b, Work *w) {
    int thread = 0;
#ifdef _OPENMP
    thread = omp_get_thread_num();
#endif
    float *memory = w->threads + thread * w->thread_floats;
#pragma omp for collapse(2) schedule(dynamic)
    for (int64_t tile = 0; tile < b->tiles; tile++)
        for (int64_t head = 0; head < m->key_heads; head++)
            attend(m, index, b, tile, head, w, memory);
}

/* logits [rows, V] after one token for every row, whose keys and values are stored. */
void polyopt_step(const Model *m, const Batch *b, float *memory, float *logits, int threads) {
    Work w;
    lay_out(m, b, threads, memory, &w);
    int64_t rows = b->rows, hidden = m->hidden, attended = m->query_heads * m->head_dim;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            copy(w.hidden + r * hidden, m->embedding + b->tokens[r] * hidden, hidden);
        for (int64_t i = 0; i < m->layers; i++) {
            const Layer *layer = m->blocks + i;
            const LayerRecord none = {0}, *record = b->record ? b->record->layers + i : &none;
            norm_rows(m, b, layer->input_norm, record->entered, &w);
            project(&layer->qkv, w.normed, rows, hidden, w.qkv, 0);
            if (record->qkv) keep_raw(m, b, record->qkv, &w);
            attend_all(m, i, b, &w);
            if (b->record) keep_attention(m, b, record, &w);
            project(&layer->out, w.attended, rows, attended, w.hidden, 1);
            norm_rows(m, b, layer->mlp_norm, record->between, &w);
            gated_panels(layer, m, rows, &w);
            if (b->record) keep_gates(m, b, record->gate_up, &w);
            project(&layer->down, w.gated, rows, w.gate_stride, w.hidden, 1);
        }
        norm_rows(m, b, m->norm, b->record ? b->record->last : NULL, &w);
        project(&m->head, w.normed, rows, hidden, logits, 0);
    }
}
