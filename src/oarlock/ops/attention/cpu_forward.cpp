// Attention's forward pass in bf16, a head of a sequence at a time.
#ifdef __AVX512BF16__

#include "blocks.h"

namespace {

using namespace attention;

// Exponents of 2 that scores may reach without a shift: fp32 and bf16 hold 2^-126 to 2^127, and sums must fit too.
constexpr float REACH = 100.0f;

template <bool DROPS, int64_t C>
struct Forward {
    const Call& call;
    const Keep<DROPS>& keep;
    bf16* out;
    float* logsumexp;

    // A block of queries and what its scores become.
    struct Queries {
        alignas(64) bf16 q[C * BLOCK];
        alignas(64) float shifts[EDGE], factors[EDGE];
        __m512 sums[EDGE];
        int64_t row_keys[EDGE];
        int64_t block, first, end;
        bf16* p;  // layout rows, [end - first]
    };

    void operator()(Item item, Item next) const {
        Rows q = call.rows(0, item), k = call.rows(1, item), v = call.rows(2, item);
        Band band = call.band(item.sequence);
        int64_t num_blocks = blocks_of(q.count);
        bf16* keys = (bf16*)tiles::scratch((2 * C + 1) * num_blocks * BLOCK * 2);  // layout columns, [block, C]
        bf16* values = keys + C * num_blocks * BLOCK;                            // layout pairs, [C, block]
        bf16* p = values + C * num_blocks * BLOCK;
        Ahead<3> ahead({call.rows(0, next), call.rows(1, next), call.rows(2, next)}, band.num_blocks() * EDGE / ROWS);

        for (int64_t b = 0; b < num_blocks; ++b) {
            for (int64_t c = 0; c < C; ++c) {
                pack_columns(k, b * EDGE, c, keys + (b * C + c) * BLOCK);
                pack_pairs(v, b * EDGE, c, values + (c * num_blocks + b) * BLOCK);
            }
        }
        float key_square = largest_square(keys, num_blocks);

        for (int64_t b = 0; b < num_blocks; ++b) {
            alignas(64) float scores[2][BLOCK], result[BLOCK];
            Queries x;
            x.block = b, x.first = band.first(b), x.end = band.end(b), x.p = p;
            std::fill(x.sums, x.sums + EDGE, _mm512_setzero_ps());
            std::fill(x.shifts, x.shifts + EDGE, 0.0f);
            if (DROPS) call.row_keys(item, b * EDGE, x.row_keys);
            float query_square = pack_query(q, b, x.q), scale = call.scale * LOG2_E;
            // By Cauchy and Schwarz no score is larger than this; seldom it is so large that the largest must be found.
            if (!(query_square * key_square * scale * scale <= REACH * REACH)) find_shifts(x, keys, band, scores[0]);

            auto score = [&](int64_t key) {
                multiply(x.q, keys + key * C * BLOCK, scores[key % 2], C);
            };
            score(x.first);
            for (int64_t key = x.first; key < x.end; ++key) {
                if (key + 1 < x.end) score(key + 1);  // runs while this one's exponentials are computed
                band.mask(scores[key % 2], b, key);
                for (int64_t r = 0; r < EDGE; r += ROWS) {
                    exponentials(x, r, scores[key % 2], key - x.first);
                    ahead.some();
                }
            }
            finish_sums(item, x);
            int64_t stride = call.num_heads * call.size;
            for (int64_t c = 0; c < C; ++c) {
                multiply(p, values + (c * num_blocks + x.first) * BLOCK, result, x.end - x.first);
                store_rows(result, x.factors, out + call.place(item) + b * EDGE * stride + c * EDGE, stride,
                           std::min(EDGE, q.count - b * EDGE), q.columns(c));
            }
        }
    }

    void find_shifts(Queries& x, const bf16* keys, const Band& band, float* scores) const {
        __m512 largest[EDGE];
        for (auto& row : largest) row = _mm512_set1_ps(MASKED);
        for (int64_t block = x.first; block < x.end; ++block) {
            multiply(x.q, keys + block * C * BLOCK, scores, C);
            band.mask(scores, x.block, block);
            for (int64_t r = 0; r < EDGE; ++r) {
                const float* row = scores + row_at(r);
                largest[r] = _mm512_max_ps(largest[r], _mm512_max_ps(_mm512_load_ps(row), _mm512_load_ps(row + 256)));
            }
        }
        for (int64_t r = 0; r < EDGE; ++r) x.shifts[r] = _mm512_reduce_max_ps(largest[r]) * (call.scale * LOG2_E);
    }

    void finish_sums(Item item, Queries& x) const {
        float* to = logsumexp + item.head * call.num_tokens + call.bounds[item.sequence] + x.block * EDGE;
        int64_t count = std::min(EDGE, call.length(item.sequence) - x.block * EDGE);
        for (int64_t h = 0; h < 2; ++h) {
            __m512 sum = sums_of(x.sums + 16 * h);
            float dropout_scale = DROPS ? dropout::keep_scale(call.dropout) : 1.0f;
            _mm512_store_ps(x.factors + 16 * h, _mm512_div_ps(_mm512_set1_ps(dropout_scale), sum));
            __m512 log = _mm512_add_ps(log2_of(sum), _mm512_load_ps(x.shifts + 16 * h));
            __mmask16 some = count >= 16 * h + 16 ? 0xffff : count <= 16 * h ? 0 : (1 << (count - 16 * h)) - 1;
            _mm512_mask_storeu_ps(to + 16 * h, some, _mm512_mul_ps(log, _mm512_set1_ps(LN_2)));
        }
    }

    // The largest sum of squares of a key.
    static float largest_square(const bf16* keys, int64_t num_blocks) {
        __m512 largest = _mm512_setzero_ps();
        for (int64_t b = 0; b < num_blocks; ++b, keys += C * BLOCK) {
            __m512 squares[2] = {};
            for (int64_t c = 0; c < C; ++c) {
                for (int64_t r = 0; r < 2 * 16; ++r) {
                    __m512i pairs = _mm512_load_si512(keys + c * BLOCK + r * EDGE);
                    squares[r / 16] = dot(squares[r / 16], pairs, pairs);
                }
            }
            largest = _mm512_max_ps(largest, _mm512_max_ps(squares[0], squares[1]));
        }
        return _mm512_reduce_max_ps(largest);
    }

    // Returns the largest sum of squares of a query.
    static float pack_query(const Rows& q, int64_t b, bf16* to) {
        __m512 squares[EDGE] = {};
        for (int64_t c = 0; c < C; ++c) {
            pack_rows(q, b * EDGE, c, to + c * BLOCK);
            for (int64_t r = 0; r < EDGE; ++r) {
                __m512i row = _mm512_load_si512(to + c * BLOCK + r * EDGE);
                squares[r] = dot(squares[r], row, row);
            }
        }
        return _mm512_reduce_max_ps(_mm512_max_ps(sums_of(squares), sums_of(squares + 16)));
    }

    // Rows from r on of the scores of the i-th block of keys.
    void exponentials(Queries& x, int64_t r, const float* scores, int64_t i) const {
        const __m512 factor = _mm512_set1_ps(call.scale * LOG2_E);
        const __m512i ones = _mm512_set1_epi16(0x3f80);
        const float *first = scores + row_at(r), *shifts = x.shifts + r;
        __m512 exponents[2 * ROWS], powers[2 * ROWS];
#pragma GCC unroll 8
        for (int64_t j = 0; j < 2 * ROWS; ++j)
            exponents[j] = _mm512_fmsub_ps(_mm512_load_ps(first + j / 2 * 16 + j % 2 * 256), factor,
                                           _mm512_set1_ps(shifts[j / 2]));
        exp2_all(exponents, powers);
        bf16* p = x.p + i * BLOCK + r * EDGE;
#pragma GCC unroll 8
        for (int64_t j = 0; j < ROWS; ++j) {
            __m512i row = narrowed(powers[2 * j], powers[2 * j + 1]);
            // Of what was rounded, so that it is what a row is divided by.
            x.sums[r + j] = dot(x.sums[r + j], row, ones);
            if (DROPS) row = _mm512_maskz_mov_epi16(keep.row(x.row_keys[r + j], x.first + i), row);
            _mm512_store_si512(p + j * EDGE, row);
        }
    }
};

}  // namespace

// qkv [T, 3, H, d], bounds [S + 1], keys [T] or none; out [T, H, d], logsumexp [H, T].
KERNEL void oarlock_attention_forward(const bf16* qkv, const int32_t* bounds, const int64_t* keys, bf16* out,
                                      float* logsumexp, int64_t num_tokens, int64_t num_sequences, int64_t num_heads,
                                      int64_t size, int64_t window, double scale, double probability) {
    bool drops = dropout::num_dropped(probability) > 0;
    Call call{qkv, bounds, keys, num_tokens, num_sequences, num_heads, size, window, float(scale), probability};
    auto table = call.column_table();
    specialised(drops, size, [&](auto on, auto blocks) {
        Keep<on> keep(table.get(), probability);
        call.for_each(Forward<on, blocks>{call, keep, out, logsumexp});
    });
}

#endif
