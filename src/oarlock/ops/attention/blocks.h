// What attention's two passes share: blocks of 32 x 32 in the layouts of `tiles.h`, 2^x, dropout and windows.
//
// A block of bf16 is two tiles, side by side for `tiles::multiply`; the scores of a block are four tiles of fp32. A head of
// a sequence is cut into blocks of 32 tokens x 32 columns, zeros after its end. Four layouts of a block:
//   rows        A of products over columns: a row a token.
//   columns     B of products over columns: pairs of columns, a column of the tile a token.
//   pairs       B of products over tokens: pairs of tokens; its columns in the order that unpacking leaves.
//   transposed  A of products over tokens: a row a column of the block, in the order that unpacking leaves.
// "The order that unpacking leaves": tile h, place j holds number 8 (j / 4) + 4 h + j % 4 of the 32.
#pragma once

#ifdef __AVX512BF16__

#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics set it off
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <atomic>
#include <numeric>

#include "tiles.h"
#include "common.h"

namespace attention {

using tiles::BLOCK;
using tiles::EDGE;
using tiles::TILE;

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.69314718055994531f;
constexpr int64_t ROWS = 4;  // rows of a block's scores that are computed together
constexpr float MASKED = -1e30f;  // finite: its difference to itself is 0, not NaN

inline int64_t blocks_of(int64_t length) { return (length + EDGE - 1) / EDGE; }

// Which of a block's 32 columns there are.
inline __mmask32 columns_of(int64_t width, int64_t block) {
    return 0xffffffffu >> (EDGE - std::min(EDGE, width - block * EDGE));
}

// Some rows of a head of a sequence, `width` columns each, in a tensor [T, ..., d].
struct Rows {
    const bf16* first;
    int64_t stride, count, width;

    __mmask32 columns(int64_t block) const { return columns_of(width, block); }

    __m512i load(int64_t row, int64_t block, __mmask32 columns) const {
        if (row >= count) return _mm512_setzero_si512();
        return _mm512_maskz_loadu_epi16(columns, first + row * stride + block * EDGE);
    }
};

inline void transpose(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 8; ++i) {
        y[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
        y[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    for (int k = 0; k < 4; ++k) {
        __m512i a = _mm512_shuffle_i32x4(x[k], x[4 + k], 0x44), b = _mm512_shuffle_i32x4(x[k], x[4 + k], 0xee);
        __m512i c = _mm512_shuffle_i32x4(x[8 + k], x[12 + k], 0x44);
        __m512i d = _mm512_shuffle_i32x4(x[8 + k], x[12 + k], 0xee);
        x[k] = _mm512_shuffle_i32x4(a, c, 0x88);
        x[4 + k] = _mm512_shuffle_i32x4(a, c, 0xdd);
        x[8 + k] = _mm512_shuffle_i32x4(b, d, 0x88);
        x[12 + k] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// The sum of each of 16 vectors.
inline __m512 sums_of(const __m512* x) {
    __m512 y[8], z[4];
    for (int i = 0; i < 8; ++i)
        y[i] = _mm512_add_ps(_mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]), _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 4; ++i) {
        __m512d a = _mm512_castps_pd(y[2 * i]), b = _mm512_castps_pd(y[2 * i + 1]);
        z[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    auto halves = [](__m512 a, __m512 b) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    };
    __m512 a = halves(z[0], z[1]), b = halves(z[2], z[3]);
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

// c + the products of a and b, added up by pairs of neighbours: 16 parts of a row's sum.
inline __m512 dot(__m512 c, __m512i a, __m512i b) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }

// Block c (+)= the products of `steps` blocks of a and b.
inline void multiply(const bf16* a, const bf16* b, float* c, int64_t steps, bool first = true) {
    tiles::multiply(a, b, c, steps, first, [](int64_t) {});
}

// 32 numbers in bf16, in order.
inline __m512i narrowed(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// 32 tokens from `row` on x column block `block`.
inline void pack_rows(const Rows& rows, int64_t row, int64_t block, bf16* to) {
    __mmask32 columns = rows.columns(block);
    for (int64_t r = 0; r < EDGE; ++r) _mm512_store_si512(to + r * EDGE, rows.load(row + r, block, columns));
}

inline void pack_columns(const Rows& rows, int64_t row, int64_t block, bf16* to) {
    __mmask32 columns = rows.columns(block);
    for (int64_t h = 0; h < 2; ++h) {
        __m512i x[16];
        for (int64_t r = 0; r < 16; ++r) x[r] = rows.load(row + 16 * h + r, block, columns);
        transpose(x);
        for (int64_t r = 0; r < 16; ++r) _mm512_store_si512(to + h * TILE + r * EDGE, x[r]);
    }
}

inline void pack_pairs(const Rows& rows, int64_t row, int64_t block, bf16* to) {
    __mmask32 columns = rows.columns(block);
    for (int64_t p = 0; p < 16; ++p) {
        __m512i even = rows.load(row + 2 * p, block, columns), odd = rows.load(row + 2 * p + 1, block, columns);
        _mm512_store_si512(to + p * EDGE, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(to + TILE + p * EDGE, _mm512_unpackhi_epi16(even, odd));
    }
}

// From a block in the layout `pairs`.
inline void pack_transposed(const bf16* pairs, bf16* to) {
    for (int64_t h = 0; h < 2; ++h) {
        __m512i x[16];
        for (int64_t p = 0; p < 16; ++p) x[p] = _mm512_load_si512(pairs + h * TILE + p * EDGE);
        transpose(x);
        for (int64_t p = 0; p < 16; ++p) _mm512_store_si512(to + h * TILE + p * EDGE, x[p]);
    }
}

// Where row r of a block of fp32 begins; its second 16 columns follow 256 after.
inline int64_t row_at(int64_t r) { return r / 16 * 512 + r % 16 * 16; }

// Writes `count` rows of 32 columns of a block of fp32 whose columns unpacking has left, each times its factor.
inline void store_rows(const float* block, const float* factors, bf16* to, int64_t stride, int64_t count,
                       __mmask32 columns) {
    for (int64_t r = 0; r < count; ++r) {
        __m512 low, high, factor = _mm512_set1_ps(factors[r]);
        tiles::row_of(block, r, low, high);
        __m512i row = narrowed(_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor));
        _mm512_mask_storeu_epi16(to + r * stride, columns, row);
    }
}

// Writes `count` columns of a block of fp32 as rows of 32, all times a factor; unpacking has left its rows and columns.
inline void store_columns(const float* block, float factor, bf16* to, int64_t stride, int64_t count,
                          __mmask32 columns) {
    alignas(64) static constexpr auto order = [] {
        struct { uint16_t of[32]; } x{};
        for (int i = 0; i < 16; ++i) x.of[2 * i] = uint16_t(i), x.of[2 * i + 1] = uint16_t(16 + i);
        return x;
    }();
    const __m512i side_by_side = _mm512_load_si512(order.of);
    const __m512 scale = _mm512_set1_ps(factor);
    auto row = [&](int64_t number, int64_t h) {
        int64_t place = number / 8 * 4 + number % 4;
        return _mm512_mul_ps(_mm512_load_ps(block + number / 4 % 2 * 512 + place * 16 + h * 256), scale);
    };
    for (int64_t h = 0; h < 2; ++h) {
        __m512i x[16];
        for (int64_t i = 0; i < 16; ++i)
            x[i] = _mm512_permutexvar_epi16(side_by_side, narrowed(row(2 * i, h), row(2 * i + 1, h)));
        transpose(x);
        for (int64_t j = 0; j < 16; ++j) {
            int64_t number = j / 4 * 8 + 4 * h + j % 4;
            if (number < count) _mm512_mask_storeu_epi16(to + number * stride, columns, x[j]);
        }
    }
}

// 2^x for some vectors, a step for all of them before the next, so that none waits for its own last step. The error is
// less than 8e-5 of the result, a 25th of a rounding to bf16 (a polynomial of least largest error on [0, 1)).
template <int N>
inline void exp2_all(const __m512 (&x)[N], __m512 (&out)[N]) {
    const __m512 c[4] = {_mm512_set1_ps(0.99992522f), _mm512_set1_ps(0.695833534f), _mm512_set1_ps(0.226067161f),
                         _mm512_set1_ps(0.0780245236f)};
    __m512 rest[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) rest[i] = _mm512_reduce_ps(x[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) out[i] = _mm512_fmadd_ps(c[3], rest[i], c[2]);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) out[i] = _mm512_fmadd_ps(out[i], rest[i], c[1]);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) out[i] = _mm512_fmadd_ps(out[i], rest[i], c[0]);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) out[i] = _mm512_scalef_ps(out[i], x[i]);
}

// log2(x) by the series of atanh: x = m 2^n, m in [0.75, 1.5), z = (m - 1) / (m + 1).
inline __m512 log2_of(__m512 x) {
    __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src), one = _mm512_set1_ps(1.0f);
    __m512 n = _mm512_getexp_ps(_mm512_div_ps(x, m));
    __m512 z = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one)), zz = _mm512_mul_ps(z, z);
    __m512 p = _mm512_set1_ps(1.0f / 9);
    for (float c : {1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f}) p = _mm512_fmadd_ps(p, zz, _mm512_set1_ps(c));
    return _mm512_fmadd_ps(_mm512_mul_ps(p, z), _mm512_set1_ps(2 * LOG2_E), n);
}

// Which keys a query sees, by blocks of 32.
struct Band {
    int64_t length, window;

    int64_t first(int64_t block) const { return std::max<int64_t>(0, block * EDGE - window) / EDGE; }
    int64_t end(int64_t block) const { return blocks_of(std::min(length, (block + 1) * EDGE + window)); }

    int64_t num_blocks() const {
        int64_t sum = 0;
        for (int64_t b = 0; b < blocks_of(length); ++b) sum += end(b) - first(b);
        return sum;
    }

    void mask(float* scores, int64_t query, int64_t key) const {
        query *= EDGE, key *= EDGE;
        if (key + EDGE <= length && key + EDGE - 1 - query <= window && query + EDGE - 1 - key <= window) return;
        for (int64_t r = 0; r < EDGE; ++r) {
            int64_t begin = std::max<int64_t>(0, query + r - window - key);
            int64_t end = std::min(EDGE, std::min(length, query + r + window + 1) - key);
            uint64_t seen = end > begin ? (uint64_t(1) << end) - (uint64_t(1) << begin) : 0;
            _mm512_mask_store_ps(scores + row_at(r), __mmask16(~seen), _mm512_set1_ps(MASKED));
            _mm512_mask_store_ps(scores + row_at(r) + 256, __mmask16(~seen >> 16), _mm512_set1_ps(MASKED));
        }
    }
};

// Dropout's decisions on a block: a row's key meets the entries of 32 columns.
template <bool ON>
struct Keep {
    const int64_t* table;
    __m512i end;

    Keep(const int64_t* table, double probability)
        : table(table), end(_mm512_set1_epi16(int16_t(2 * dropout::first_dropped(probability)))) {}

    __mmask32 row(int64_t key, int64_t block) const {
        if constexpr (!ON) return 0xffffffffu;
        __m512i x = _mm512_xor_si512(_mm512_set1_epi64(key), _mm512_load_si512(table + block * 8));
        x = _mm512_mullo_epi64(x, _mm512_set1_epi64(dropout::MIX1));
        x = _mm512_add_epi64(x, _mm512_srai_epi64(x, 31));
        return _mm512_cmplt_epi16_mask(x, end);
    }
};

// A head of a sequence.
struct Item {
    int64_t sequence, head;
};

// Fetches the rows of some tensors that will be read next, evenly spread over `calls` calls: they lie too far apart for
// the machine to guess.
template <int64_t N>
class Ahead {
   public:
    Ahead(const Rows (&tensors)[N], int64_t calls) : pace(float(tensors[0].count) / calls) {
        std::copy(tensors, tensors + N, rows);
    }

    void some() {
        for (due += pace; next < std::min(rows[0].count, int64_t(due)); ++next)
            for (const Rows& x : rows)
                for (int64_t c = 0; c < x.width; c += EDGE)
                    _mm_prefetch((const char*)(x.first + next * x.stride + c), _MM_HINT_T1);
    }

   private:
    Rows rows[N];
    int64_t next = 0;
    float pace, due = 0;
};

// What a call is about.
struct Call {
    const bf16* qkv;
    const int32_t* bounds;
    const int64_t* keys;
    int64_t num_tokens, num_sequences, num_heads, size, window;
    float scale;
    double dropout;

    int64_t stride() const { return 3 * num_heads * size; }

    // Where an item's rows begin in a tensor [T, H, d].
    int64_t place(Item item) const { return (bounds[item.sequence] * num_heads + item.head) * size; }

    // Where its queries, keys or values (0, 1, 2) begin in a tensor [T, 3, H, d].
    int64_t place(int64_t which, Item item) const {
        return bounds[item.sequence] * stride() + (which * num_heads + item.head) * size;
    }

    Rows rows(int64_t which, Item item) const {
        return {qkv + place(which, item), stride(), length(item.sequence), size};
    }

    Rows rows_of(const bf16* tensor, Item item) const {
        return {tensor + place(item), num_heads * size, length(item.sequence), size};
    }

    int64_t length(int64_t sequence) const { return bounds[sequence + 1] - bounds[sequence]; }

    Band band(int64_t sequence) const {
        return {length(sequence), window < 0 ? length(sequence) : std::min(window, length(sequence))};
    }

    // Calls f(item, next) for every head of every sequence, the longest first, in parallel: each is computed whole by
    // one thread, which knows what it will compute next and can fetch it meanwhile. After the last comes the last.
    template <class F>
    void for_each(F f) const {
        std::vector<int64_t> order(num_sequences);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
        int64_t count = std::partition_point(order.begin(), order.end(), [&](int64_t s) { return length(s) > 0; }) -
                        order.begin();
        std::atomic<int64_t> claimed{0};
        auto item = [&](int64_t i) { return Item{order[i / num_heads], i % num_heads}; };
#pragma omp parallel
        {
            tiles::Tiles tiles;
            for (int64_t end = count * num_heads, now = claimed++, next; now < end; now = next) {
                next = claimed++;
                f(item(now), item(std::min(next, end - 1)));
            }
        }
    }

    // Dropout's entries of all columns, for as many blocks as the longest sequence has.
    std::shared_ptr<int64_t> column_table() const {
        int64_t longest = 0;
        for (int64_t s = 0; s < num_sequences; ++s) longest = std::max(longest, length(s));
        auto entries = dropout == 0 ? std::vector<int64_t>() : dropout::column_table(blocks_of(longest) * EDGE);
        auto memory = static_cast<int64_t*>(std::aligned_alloc(64, std::max<size_t>(1, entries.size() / 8) * 64));
        std::copy(entries.begin(), entries.end(), memory);
        return {memory, std::free};
    }

    void row_keys(Item item, int64_t row, int64_t (&to)[EDGE]) const {
        int64_t left = length(item.sequence) - row;
        const int64_t* from = keys + bounds[item.sequence] + row;
        for (int64_t r = 0; r < EDGE; ++r) to[r] = r < left ? dropout::head_key(from[r], item.head) : 0;
    }
};

// Calls f with std::true_type or std::false_type for dropout, and the number of column blocks of a head as a constant.
template <class F>
inline void specialised(bool drops, int64_t size, F f) {
    auto with = [&](auto on) {
        switch (blocks_of(size)) {
            case 1: return f(on, std::integral_constant<int64_t, 1>());
            case 2: return f(on, std::integral_constant<int64_t, 2>());
            case 3: return f(on, std::integral_constant<int64_t, 3>());
            default: return f(on, std::integral_constant<int64_t, 4>());
        }
    };
    drops ? with(std::true_type()) : with(std::false_type());
}

}  // namespace attention

#endif
