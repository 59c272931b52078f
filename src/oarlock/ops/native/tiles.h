// Matrix products in bf16 with fp32 sums, on AMX's tile registers or by AVX-512's dot products of pairs.
//
// C = A B is computed in blocks of 32 rows x 32 columns, four tiles, over runs of DEPTH terms. Both operands are packed
// first, in panels of 32 rows of A, or 32 columns of B, by DEPTH terms: for every 32 terms two tiles, 16 rows of 64 bytes
// each. A tile of A has a row an item, a tile of B a row a pair of terms. A panel of each stays close to the core while
// the sums of a block are in registers.
//
// B's tiles hold pairs of terms side by side, and its columns in the order in which unpacking two rows leaves them: tile
// q, column c is column 8 (c / 4) + 4 q + c % 4 of the panel. `row_of` undoes it.
#pragma once

#ifdef __AVX512BF16__

#include <immintrin.h>

#include "common.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12's own intrinsics set it off
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace tiles {

constexpr int64_t EDGE = 32, DEPTH = 512, STEP = 32;
constexpr int64_t TILE = 512;         // bf16 elements
constexpr int64_t BLOCK = EDGE * EDGE;  // fp32 elements

inline int64_t panels(int64_t n) { return (n + EDGE - 1) / EDGE; }
inline int64_t steps_of(int64_t terms) { return (terms + STEP - 1) / STEP; }

// A thread's memory for packed panels, kept from call to call: fresh pages cost more than the work on them.
inline char* scratch(size_t bytes) {
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    static thread_local std::unique_ptr<char, Free> memory;
    static thread_local size_t size = 0;
    if (bytes > size) {
        size = (bytes + 4095) / 4096 * 4096;
        memory.reset(static_cast<char*>(std::aligned_alloc(4096, size)));
    }
    return memory.get();
}

#ifdef __AMX_BF16__

// The eight tile registers, all of 16 rows of 64 bytes, for as long as the object lives.
class Tiles {
   public:
    Tiles() {
        alignas(64) struct {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } config;
        _tile_loadconfig(&config);
    }
    ~Tiles() { _tile_release(); }
};

// Block c (+)= panel a x panel b. `between(s)` is called at every step of 32 terms: the tiles
// leave the vector units idle.
template <class F>
inline void multiply(const bf16* a, const bf16* b, float* c, int64_t steps, bool first, F between) {
    asm volatile("" ::: "memory");  // the compiler does not know that tile loads read what was packed
    if (first) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    } else {
        _tile_stream_loadd(0, c, 64);
        _tile_stream_loadd(1, c + 256, 64);
        _tile_stream_loadd(2, c + 512, 64);
        _tile_stream_loadd(3, c + 768, 64);
    }
    for (int64_t s = 0; s < steps; ++s, a += 2 * TILE, b += 2 * TILE) {
        _tile_stream_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + TILE, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_stream_loadd(5, a + TILE, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        between(s);
    }
    _tile_stored(0, c, 64);
    _tile_stored(1, c + 256, 64);
    _tile_stored(2, c + 512, 64);
    _tile_stored(3, c + 768, 64);
}

#else

// A core that multiplies tiles must be told so, for as long as it does; AVX-512 needs no telling.
struct Tiles {
    Tiles() {}  // a variable of it counts as used
};

// Eight rows of a block: sixteen sums in registers hide the instruction's latency.
inline void multiply_rows(const bf16* a, const bf16* b, float* c, int64_t steps, bool first) {
    constexpr int64_t ROWS = 8;
    __m512 low[ROWS], high[ROWS];
#pragma GCC unroll 8
    for (int64_t r = 0; r < ROWS; ++r) {
        low[r] = first ? _mm512_setzero_ps() : _mm512_load_ps(c + r * 16);
        high[r] = first ? _mm512_setzero_ps() : _mm512_load_ps(c + 256 + r * 16);
    }
    for (int64_t s = 0; s < steps; ++s, a += 2 * TILE, b += 2 * TILE) {
#pragma GCC unroll 4
        for (int64_t pair = 0; pair < STEP / 2; ++pair) {
            __m512bh left = (__m512bh)_mm512_load_si512(b + pair * 32);
            __m512bh right = (__m512bh)_mm512_load_si512(b + TILE + pair * 32);
#pragma GCC unroll 8
            for (int64_t r = 0; r < ROWS; ++r) {
                int32_t terms;
                std::memcpy(&terms, a + r * STEP + 2 * pair, 4);
                __m512bh both = (__m512bh)_mm512_set1_epi32(terms);
                low[r] = _mm512_dpbf16_ps(low[r], both, left);
                high[r] = _mm512_dpbf16_ps(high[r], both, right);
            }
        }
    }
#pragma GCC unroll 8
    for (int64_t r = 0; r < ROWS; ++r) {
        _mm512_store_ps(c + r * 16, low[r]);
        _mm512_store_ps(c + 256 + r * 16, high[r]);
    }
}

// Block c (+)= panel a x panel b. `between(s)` is called at every step of 32 terms.
template <class F>
inline void multiply(const bf16* a, const bf16* b, float* c, int64_t steps, bool first, F between) {
    for (int64_t s = 0; s < steps; ++s) between(s);
    for (int64_t r = 0; r < EDGE; r += 8)
        multiply_rows(a + r / 16 * TILE + r % 16 * STEP, b, c + r / 16 * 512 + r % 16 * 16, steps, first);
}

#endif

// Row r of a block, its columns in order: columns 0 to 15 and 16 to 31.
inline void row_of(const float* block, int64_t r, __m512& low, __m512& high) {
    const float* row = block + r / 16 * 512 + r % 16 * 16;
    __m512 even = _mm512_load_ps(row), odd = _mm512_load_ps(row + 256);
    low = _mm512_permutex2var_ps(
        even, _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), odd);
    high = _mm512_permutex2var_ps(
        even, _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31), odd);
}

// Terms [0, rows) x items [0, columns) of a matrix with terms along its rows, in `to` [height, width], zeros elsewhere.
inline void copy_edge(const bf16* from, int64_t stride, int64_t rows, int64_t columns, bf16* to, int64_t height,
                      int64_t width) {
    std::memset(to, 0, height * width * sizeof(bf16));
    if (columns > 0)
        for (int64_t r = 0; r < std::min(rows, height); ++r)
            std::memcpy(to + r * width, from + r * stride, std::min(columns, width) * sizeof(bf16));
}

// 16 terms (rows) x 32 items to rows [0, 8) of the two tiles of B at `to`.
inline void pack_pairs(const bf16* from, int64_t stride, bf16* to) {
    for (int64_t p = 0; p < 8; ++p) {
        __m512i even = _mm512_loadu_si512(from + 2 * p * stride), odd = _mm512_loadu_si512(from + (2 * p + 1) * stride);
        _mm512_store_si512(to + p * 32, _mm512_unpacklo_epi16(even, odd));
        _mm512_store_si512(to + TILE + p * 32, _mm512_unpackhi_epi16(even, odd));
    }
}

// 32 terms (rows) x 8 items to eight rows of a tile of A at `to`: a row an item.
inline void pack_transposed(const bf16* from, int64_t stride, bf16* to) {
    __m512i r[8], s[8];
    for (int64_t j = 0; j < 8; ++j) {
        auto quarter = [&](int64_t q) { return _mm_loadu_si128((const __m128i*)(from + (8 * q + j) * stride)); };
        r[j] = _mm512_castsi128_si512(quarter(0));
        r[j] = _mm512_mask_broadcast_i32x4(r[j], 0x00f0, quarter(1));
        r[j] = _mm512_mask_broadcast_i32x4(r[j], 0x0f00, quarter(2));
        r[j] = _mm512_mask_broadcast_i32x4(r[j], 0xf000, quarter(3));
    }
    for (int64_t j = 0; j < 4; ++j) {
        s[2 * j] = _mm512_unpacklo_epi16(r[2 * j], r[2 * j + 1]);  // items 0 to 3 of terms 2 j, 2 j + 1
        s[2 * j + 1] = _mm512_unpackhi_epi16(r[2 * j], r[2 * j + 1]);
    }
    for (int64_t j = 0; j < 2; ++j) {
        for (int64_t h = 0; h < 2; ++h) {
            r[4 * j + 2 * h] = _mm512_unpacklo_epi32(s[4 * j + h], s[4 * j + 2 + h]);  // items 4 h, 4 h + 1 of 4 terms
            r[4 * j + 2 * h + 1] = _mm512_unpackhi_epi32(s[4 * j + h], s[4 * j + 2 + h]);
        }
    }
    for (int64_t i = 0; i < 4; ++i) {
        _mm512_store_si512(to + (2 * i) * 32, _mm512_unpacklo_epi64(r[i], r[4 + i]));
        _mm512_store_si512(to + (2 * i + 1) * 32, _mm512_unpackhi_epi64(r[i], r[4 + i]));
    }
}

}  // namespace tiles

#pragma GCC diagnostic pop

#endif
