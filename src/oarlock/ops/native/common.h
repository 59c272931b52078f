// What the CPU kernels share: bf16, elementary functions that become vectors, dropout's decisions, threads.
//
// Kernels know nothing of torch. They take pointers to contiguous memory and sizes, divide work among OpenMP's threads in
// pieces that do not depend on the number of threads, and add partial sums in the order of the pieces: the result is the
// same for any number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define KERNEL extern "C" __attribute__((visibility("default")))

struct bf16 {
    uint16_t bits;
};

inline float widen(float x) { return x; }

inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

template <class T>
inline T narrow(float x);

template <>
inline float narrow<float>(float x) { return x; }

// To the nearest, ties to even; NaN stays NaN.
template <>
inline bf16 narrow<bf16>(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return {uint16_t(x != x ? 0x7fc0 : rounded)};
}

// Narrows a row. The processor's own instruction takes a tenth of the time; it flushes what is below 2^-126 to 0.
inline void narrow_row(const float* from, bf16* to, int64_t n) {
    int64_t c = 0;
#ifdef __AVX512BF16__
    for (; c + 32 <= n; c += 32)
        _mm512_storeu_si512(
            to + c, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + c + 16), _mm512_loadu_ps(from + c)));
#endif
#pragma omp simd
    for (int64_t i = c; i < n; ++i) to[i] = narrow<bf16>(from[i]);
}

inline void narrow_row(const float* from, float* to, int64_t n) { std::memcpy(to, from, n * sizeof(float)); }

// to[c] = f(c), narrowed by strips that stay in registers: memory waits for no burst of stores at the end of a row.
template <class F>
inline void write_row(bf16* to, int64_t n, F f) {
    int64_t c = 0;
#ifdef __AVX512BF16__
    constexpr int64_t STRIP = 64;
    for (; c + STRIP <= n; c += STRIP) {
        alignas(64) float strip[STRIP];
#pragma omp simd
        for (int64_t i = 0; i < STRIP; ++i) strip[i] = f(c + i);
        narrow_row(strip, to + c, STRIP);
    }
#endif
#pragma omp simd
    for (int64_t i = c; i < n; ++i) to[i] = narrow<bf16>(f(i));
}

template <class F>
inline void write_row(float* to, int64_t n, F f) {
#pragma omp simd
    for (int64_t c = 0; c < n; ++c) to[c] = f(c);
}

// e^x to about 2 units in the last place; 0 below -87.3, infinity above 88.7 (Cephes' polynomial on [-ln 2 / 2, ln 2 / 2]).
inline float fast_exp(float x) {
    float clamped = std::min(std::max(x, -88.0f), 89.0f);
    float n = std::nearbyintf(clamped * 1.44269504088896341f);
    float r = clamped - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // Two factors, for 2^n alone is no finite float at n = 128.
    int32_t half = int32_t(n) >> 1, rest = int32_t(n) - half;
    int32_t first = (half + 127) << 23, second = (rest + 127) << 23;
    float a, b;
    std::memcpy(&a, &first, 4);
    std::memcpy(&b, &second, 4);
    float out = p * a * b;
    out = x < -87.3f ? 0.0f : out;
    return x != x ? x : out;
}

struct Free {
    void operator()(void* memory) const { std::free(memory); }
};

// Scratch that nobody has written yet, on whole cache lines.
template <class T>
using Scratch = std::unique_ptr<T[], Free>;
using Floats = Scratch<float>;

template <class T>
inline Scratch<T> scratch(int64_t n) {
    return Scratch<T>((T*)std::aligned_alloc(64, (n * sizeof(T) / 64 + 1) * 64));
}

inline Floats floats(int64_t n) { return scratch<float>(n); }

// A vector of weights in fp32; of zeros where there is none.
template <class T>
inline Floats widened(const T* x, int64_t columns) {
    Floats out = floats(columns);
    for (int64_t c = 0; c < columns; ++c) out[c] = x ? widen(x[c]) : 0.0f;
    return out;
}

// Calls f(begin, end) for pieces of `grain` items, in parallel.
template <class F>
inline void parallel_pieces(int64_t n, int64_t grain, F f) {
    int64_t pieces = (n + grain - 1) / grain;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (int64_t i = 0; i < pieces; ++i) f(i * grain, std::min(n, (i + 1) * grain));
}

// out[c] = the sum of `pieces` rows of partial sums.
inline void add_pieces(const float* sums, int64_t pieces, int64_t columns, float* out) {
    parallel_pieces(columns, 256, [&](int64_t begin, int64_t end) {
        std::fill(out + begin, out + end, 0.0f);
        for (int64_t i = 0; i < pieces; ++i)
#pragma omp simd
            for (int64_t c = begin; c < end; ++c) out[c] += sums[i * columns + c];
    });
}

// Whether an index lies outside of [0, limit).
inline bool any_outside(const int64_t* indices, int64_t n, int64_t limit) {
    int64_t found = 0;
#pragma omp simd reduction(| : found)
    for (int64_t i = 0; i < n; ++i) found |= int64_t(uint64_t(indices[i]) >= uint64_t(limit));
    return found != 0;
}

// Dropout's decisions, as `random_bits.py` defines them. A row's key and a column's entry meet in one hash of four lanes.
namespace dropout {

constexpr int64_t GOLDEN = -7046029254386353131LL, MIX1 = -4658895280553007687LL, MIX2 = -7723592293110705685LL;
constexpr int64_t LANES = 4;

inline int64_t product(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
inline int64_t sum(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }

inline int64_t mix(int64_t x) {
    x = product(x, MIX1);
    x = sum(x, x >> 31);
    x = product(x, MIX2);
    return sum(x, x >> 29);
}

inline int64_t head_key(int64_t token_key, int64_t head) { return mix(sum(token_key, product(head + 1, MIX2))); }

// Entries of columns 4 i to 4 i + 3, for `columns` columns.
inline std::vector<int64_t> column_table(int64_t columns) {
    std::vector<int64_t> table((columns + LANES - 1) / LANES);
    for (size_t i = 0; i < table.size(); ++i) table[i] = mix(product(int64_t(i) + 1, GOLDEN));
    return table;
}

inline int64_t hash(int64_t row_key, int64_t entry) {
    int64_t x = product(row_key ^ entry, MIX1);
    return sum(x, x >> 31);
}

// Writes `hashes` x 4 lanes: a lane is kept where `(lane >> 1) < first_dropped`, with first_dropped from the probability.
inline void lanes(int64_t row_key, const int64_t* table, int64_t hashes, int16_t* out) {
    auto words = reinterpret_cast<int64_t*>(__builtin_assume_aligned(out, 8));
#pragma omp simd
    for (int64_t i = 0; i < hashes; ++i) words[i] = hash(row_key, table[i]);
}

inline int32_t num_dropped(double probability) { return int32_t(std::nearbyint(probability * 32768)); }
inline int16_t first_dropped(double probability) { return int16_t(16384 - num_dropped(probability)); }
inline float keep_scale(double probability) { return float(32768.0 / (32768 - num_dropped(probability))); }
inline bool keeps(int16_t lane, int16_t first_dropped) { return int16_t(lane >> 1) < first_dropped; }

// What becomes of the elements of one row.
struct Row {
    const int16_t* lanes;
    int16_t first_dropped;
    float scale;

    float operator()(int64_t column, float x) const { return keeps(lanes[column], first_dropped) ? x * scale : 0.0f; }
};

// Draws the decisions of a row into `lanes`, scratch of `num_lanes`.
struct Decisions {
    const int64_t* keys;
    std::vector<int64_t> table;
    int16_t first;
    float scale;

    Decisions(const int64_t* keys, int64_t columns, double probability)
        : keys(keys), table(column_table(columns)), first(first_dropped(probability)), scale(keep_scale(probability)) {}

    int64_t num_lanes() const { return int64_t(table.size()) * LANES; }

    Row operator()(int64_t row, int16_t* out) const {
        lanes(keys[row], table.data(), int64_t(table.size()), out);
        return {out, first, scale};
    }
};

}  // namespace dropout
