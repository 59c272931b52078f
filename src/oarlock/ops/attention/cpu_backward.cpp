// Attention's backward pass in bf16, a head of a sequence at a time.
//
// With p = exp2(scores - logsumexp), o the output and delta = sum(grad_o * o) of each row:
//   grad_v = p^T grad_o, grad_p = grad_o v^T, grad_s = p (grad_p - delta), grad_q = grad_s k, grad_k = grad_s^T q.
// grad_k and grad_v are computed transposed, for then p and grad_s need only be unpacked to be the second operand.
#ifdef __AVX512BF16__

#include "blocks.h"

namespace {

using namespace attention;

constexpr int64_t GROUP = 4;  // blocks of queries whose products over tokens are added up in the tiles at once

template <bool DROPS, int64_t C>
struct Backward {
    const Call& call;
    const Keep<DROPS>& keep;
    const bf16 *grad, *out;
    const float* logsumexp;
    bf16* grad_qkv;

    // What a group of query blocks needs: [block, C] in layout rows, [C, block] transposed, and numbers of each row.
    struct Queries {
        alignas(64) bf16 q[GROUP * C * BLOCK], grad_o[GROUP * C * BLOCK];
        alignas(64) bf16 q_transposed[C * GROUP * BLOCK], grad_o_transposed[C * GROUP * BLOCK];
        alignas(64) float logsumexp[GROUP * EDGE], minus_delta[GROUP * EDGE];
        int64_t row_keys[GROUP][EDGE];
    };

    // What the scores of a group and one block of keys become: pairs of tokens, [block].
    struct Column {
        alignas(64) bf16 p[GROUP * BLOCK], grad_s[GROUP * BLOCK];
        int64_t key, first, count;
        bool is_first, is_last;
    };

    void operator()(Item item, Item next) const {
        Rows k = call.rows(1, item), v = call.rows(2, item);
        Band band = call.band(item.sequence);
        int64_t num_blocks = blocks_of(k.count), blocks = C * num_blocks * BLOCK;
        auto* sums_k = (float*)tiles::scratch(blocks * (2 * 4 + 3 * 2) + GROUP * num_blocks * BLOCK * 2);
        float* sums_v = sums_k + blocks;        // both transposed, [block, C]
        bf16* keys = (bf16*)(sums_v + blocks);  // layout columns, [block, C]
        bf16* values = keys + blocks;           // layout columns, [block, C]
        bf16* key_pairs = values + blocks;      // layout pairs, [C, block]
        bf16* grad_s = key_pairs + blocks;      // layout rows, [GROUP, block]
        Queries queries;
        Column column;
        alignas(64) float scores[2][BLOCK], grad_p[2][BLOCK];
        Ahead<5> ahead({call.rows(0, next), call.rows(1, next), call.rows(2, next), call.rows_of(grad, next),
                        call.rows_of(out, next)},
                       band.num_blocks() * EDGE / ROWS);

        for (int64_t b = 0; b < num_blocks; ++b) {
            for (int64_t c = 0; c < C; ++c) {
                pack_columns(k, b * EDGE, c, keys + (b * C + c) * BLOCK);
                pack_columns(v, b * EDGE, c, values + (b * C + c) * BLOCK);
                pack_pairs(k, b * EDGE, c, key_pairs + (c * num_blocks + b) * BLOCK);
            }
        }

        for (int64_t start = 0; start < num_blocks; start += GROUP) {
            int64_t stop = std::min(start + GROUP, num_blocks);
            pack_queries(item, start, stop, queries);
            // The band is symmetric: the queries that see a key are those that the query in its place sees.
            auto first = [&](int64_t key) { return std::max(start, band.first(key)); };
            auto end = [&](int64_t key) { return std::min(stop, band.end(key)); };
            int64_t turn = 0, first_key = band.first(start), end_key = band.end(stop - 1);
            auto score = [&](int64_t query, int64_t key) {
                int64_t at = (query - start) * C * BLOCK;
                multiply(queries.q + at, keys + key * C * BLOCK, scores[turn % 2], C);
                multiply(queries.grad_o + at, values + key * C * BLOCK, grad_p[turn % 2], C);
                ++turn;
            };
            score(first(first_key), first_key);
            for (int64_t key = first_key; key < end_key; ++key) {
                for (int64_t query = first(key); query < end(key); ++query) {
                    int64_t i = query - start, now = (turn + 1) % 2;
                    // The next products run while this block's exponentials are computed.
                    if (query + 1 < end(key)) score(query + 1, key);
                    else if (key + 1 < end_key) score(first(key + 1), key + 1);
                    band.mask(scores[now], query, key);
                    for (int64_t r = 0; r < EDGE; r += ROWS) {
                        gradients(scores[now], grad_p[now], r, queries, i, key,
                                  grad_s + (i * num_blocks + key) * BLOCK, column);
                        ahead.some();
                    }
                }
                column.key = key, column.first = first(key) - start, column.count = end(key) - first(key);
                column.is_first = start <= band.first(key), column.is_last = stop >= band.end(key);
                add_column(item, column, queries, sums_k, sums_v);
            }
            for (int64_t query = start; query < stop; ++query)
                store_query(item, query, band, grad_s + (query - start) * num_blocks * BLOCK, key_pairs, num_blocks);
        }
    }

    void pack_queries(Item item, int64_t start, int64_t stop, Queries& queries) const {
        Rows q = call.rows(0, item), g = call.rows_of(grad, item);
        Rows o = call.rows_of(out, item);
        alignas(64) bf16 pairs[BLOCK];
        for (int64_t b = start, i = 0; b < stop; ++b, ++i) {
            __m512 delta[EDGE] = {};
            for (int64_t c = 0; c < C; ++c) {
                bf16* rows = queries.grad_o + (i * C + c) * BLOCK;
                pack_rows(q, b * EDGE, c, queries.q + (i * C + c) * BLOCK);
                pack_rows(g, b * EDGE, c, rows);
                for (int64_t r = 0; r < EDGE; ++r)
                    delta[r] = dot(delta[r], o.load(b * EDGE + r, c, o.columns(c)), _mm512_load_si512(rows + r * EDGE));
                pack_pairs(q, b * EDGE, c, pairs);
                pack_transposed(pairs, queries.q_transposed + (c * GROUP + i) * BLOCK);
                pack_pairs(g, b * EDGE, c, pairs);
                pack_transposed(pairs, queries.grad_o_transposed + (c * GROUP + i) * BLOCK);
            }
            for (int64_t h = 0; h < 2; ++h)
                _mm512_store_ps(queries.minus_delta + i * EDGE + 16 * h,
                                _mm512_sub_ps(_mm512_setzero_ps(), sums_of(delta + 16 * h)));
            const float* sums = logsumexp + item.head * call.num_tokens + call.bounds[item.sequence] + b * EDGE;
            // Of rows past the end nothing may come: their probabilities are 0.
            for (int64_t r = 0; r < EDGE; ++r)
                queries.logsumexp[i * EDGE + r] = b * EDGE + r < q.count ? sums[r] * LOG2_E : -MASKED;
            if (DROPS) call.row_keys(item, b * EDGE, queries.row_keys[i]);
        }
    }

    // Rows from r on of the i-th of the group's query blocks and a block of keys.
    void gradients(const float* scores, const float* grad_p, int64_t r, const Queries& queries, int64_t i, int64_t key,
                   bf16* grad_s, Column& column) const {
        const __m512 factor = _mm512_set1_ps(call.scale * LOG2_E);
        const __m512 kept_scale = _mm512_set1_ps(DROPS ? dropout::keep_scale(call.dropout) : 1.0f);
        const float *sums = queries.logsumexp + i * EDGE + r, *minus_delta = queries.minus_delta + i * EDGE + r;
        __m512 exponents[2 * ROWS], powers[2 * ROWS];
        __m512i p[ROWS], s[ROWS];
        auto at = [&](int64_t j) { return row_at(r) + j / 2 * 16 + j % 2 * 256; };
#pragma GCC unroll 8
        for (int64_t j = 0; j < 2 * ROWS; ++j)
            exponents[j] = _mm512_fmsub_ps(_mm512_load_ps(scores + at(j)), factor, _mm512_set1_ps(sums[j / 2]));
        exp2_all(exponents, powers);
#pragma GCC unroll 8
        for (int64_t j = 0; j < ROWS; ++j) {
            __mmask32 kept = DROPS ? keep.row(queries.row_keys[i][r + j], key) : 0xffffffffu;
            const __m512 shift = _mm512_set1_ps(minus_delta[j]);
            __m512 low = _mm512_load_ps(grad_p + at(2 * j)), high = _mm512_load_ps(grad_p + at(2 * j + 1));
            low = DROPS ? _mm512_mask3_fmadd_ps(low, kept_scale, shift, __mmask16(kept)) : _mm512_add_ps(low, shift);
            high = DROPS ? _mm512_mask3_fmadd_ps(high, kept_scale, shift, __mmask16(kept >> 16))
                         : _mm512_add_ps(high, shift);
            p[j] = narrowed(powers[2 * j], powers[2 * j + 1]);
            if (DROPS) p[j] = _mm512_maskz_mov_epi16(kept, p[j]);
            s[j] = narrowed(_mm512_mul_ps(powers[2 * j], low), _mm512_mul_ps(powers[2 * j + 1], high));
            _mm512_store_si512(grad_s + (r + j) * EDGE, s[j]);
        }
        bf16 *p_pairs = column.p + i * BLOCK + r / 2 * EDGE, *s_pairs = column.grad_s + i * BLOCK + r / 2 * EDGE;
#pragma GCC unroll 8
        for (int64_t j = 0; j < ROWS / 2; ++j) {
            _mm512_store_si512(p_pairs + j * EDGE, _mm512_unpacklo_epi16(p[2 * j], p[2 * j + 1]));
            _mm512_store_si512(p_pairs + TILE + j * EDGE, _mm512_unpackhi_epi16(p[2 * j], p[2 * j + 1]));
            _mm512_store_si512(s_pairs + j * EDGE, _mm512_unpacklo_epi16(s[2 * j], s[2 * j + 1]));
            _mm512_store_si512(s_pairs + TILE + j * EDGE, _mm512_unpackhi_epi16(s[2 * j], s[2 * j + 1]));
        }
    }

    // Adds what a group's queries give to a block of keys and values; the last group writes it.
    void add_column(Item item, const Column& x, const Queries& queries, float* sums_k, float* sums_v) const {
        float *sum_k = sums_k + x.key * C * BLOCK, *sum_v = sums_v + x.key * C * BLOCK;
        for (int64_t c = 0; c < C; ++c) {
            int64_t at = (c * GROUP + x.first) * BLOCK;
            multiply(queries.q_transposed + at, x.grad_s + x.first * BLOCK, sum_k + c * BLOCK, x.count, x.is_first);
            multiply(queries.grad_o_transposed + at, x.p + x.first * BLOCK, sum_v + c * BLOCK, x.count, x.is_first);
        }
        if (!x.is_last) return;
        store_key(item, 1, x.key, sum_k, call.scale);
        store_key(item, 2, x.key, sum_v, DROPS ? dropout::keep_scale(call.dropout) : 1.0f);
    }

    void store_key(Item item, int64_t which, int64_t key, const float* sums, float factor) const {
        bf16* to = grad_qkv + call.place(which, item) + key * EDGE * call.stride();
        for (int64_t c = 0; c < C; ++c)
            store_columns(sums + c * BLOCK, factor, to + c * EDGE, call.stride(),
                          call.length(item.sequence) - key * EDGE, columns_of(call.size, c));
    }

    void store_query(Item item, int64_t query, const Band& band, const bf16* grad_s, const bf16* key_pairs,
                     int64_t num_blocks) const {
        alignas(64) float factors[EDGE], result[BLOCK];
        std::fill(factors, factors + EDGE, call.scale);
        int64_t first = band.first(query), count = band.end(query) - first;
        bf16* to = grad_qkv + call.place(0, item) + query * EDGE * call.stride();
        for (int64_t c = 0; c < C; ++c) {
            multiply(grad_s + first * BLOCK, key_pairs + (c * num_blocks + first) * BLOCK, result, count);
            store_rows(result, factors, to + c * EDGE, call.stride(), std::min(EDGE, band.length - query * EDGE),
                       columns_of(call.size, c));
        }
    }
};

}  // namespace

// grad and out [T, H, d], qkv and grad_qkv [T, 3, H, d], logsumexp [H, T], bounds [S + 1], keys [T] or none.
KERNEL void oarlock_attention_backward(const bf16* grad, const bf16* qkv, const bf16* out, const float* logsumexp,
                                       const int32_t* bounds, const int64_t* keys, bf16* grad_qkv, int64_t num_tokens,
                                       int64_t num_sequences, int64_t num_heads, int64_t size, int64_t window,
                                       double scale, double probability) {
    bool drops = dropout::num_dropped(probability) > 0;
    Call call{qkv, bounds, keys, num_tokens, num_sequences, num_heads, size, window, float(scale), probability};
    auto table = call.column_table();
    specialised(drops, size, [&](auto on, auto blocks) {
        Keep<on> keep(table.get(), probability);
        call.for_each(Backward<on, blocks>{call, keep, grad, out, logsumexp, grad_qkv});
    });
}

#endif
