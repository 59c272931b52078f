// The gradients of a linear layer's parameters: sums over the tokens, and products of bf16 over many terms,
// summed and returned in fp32.
#include <omp.h>

#include "tiles.h"
#include "common.h"

namespace {

constexpr int64_t ROWS = 64;

template <class T>
void column_sums(const T* x, float* out, int64_t rows, int64_t columns) {
    int64_t pieces = (rows + ROWS - 1) / ROWS;
    std::vector<float> sums(pieces * columns, 0.0f);
    parallel_pieces(rows, ROWS, [&](int64_t begin, int64_t end) {
        float* sum = sums.data() + begin / ROWS * columns;
        for (int64_t r = begin; r < end; ++r)
#pragma omp simd
            for (int64_t c = 0; c < columns; ++c) sum[c] += widen(x[r * columns + c]);
    });
    add_pieces(sums.data(), pieces, columns, out);
}

}  // namespace

KERNEL void oarlock_column_sums(const void* x, float* out, int64_t rows, int64_t columns, int64_t wide) {
    if (wide)
        column_sums((const float*)x, out, rows, columns);
    else
        column_sums((const bf16*)x, out, rows, columns);
}

#ifdef __AVX512BF16__

namespace {

using namespace tiles;

// A matrix [terms, items], of which items [begin, end) are multiplied; or, as A may be, [items, terms].
struct Side {
    const bf16* matrix;
    int64_t terms, items, begin, end;
    bool items_first;

    int64_t num_panels() const { return panels(end - begin); }

    // Calls pack(from, stride) for HEIGHT terms x WIDTH items; what lies outside of the matrix is zero.
    template <int64_t HEIGHT, int64_t WIDTH, class F>
    void piece(int64_t term, int64_t item, F pack) const {
        const bf16* from = matrix + term * items + item;
        if (term + HEIGHT <= terms && item + WIDTH <= end) {
            pack(from, items);
        } else {
            alignas(64) bf16 edge[HEIGHT * WIDTH];
            copy_edge(from, items, terms - term, end - item, edge, HEIGHT, WIDTH);
            pack(edge, WIDTH);
        }
    }

    // All panels of A.
    void pack_a(int64_t term, int64_t steps, bf16* to) const {
        if (items_first) return pack_rows(term, steps, to);
        for (int64_t s = 0; s < steps; ++s)
            for (int64_t i = 0; i < num_panels(); ++i)
                for (int64_t part = 0; part < 4; ++part)
                    piece<32, 8>(term + s * STEP, begin + i * EDGE + 8 * part, [&](const bf16* from, int64_t stride) {
                        pack_transposed(from, stride, to + (i * steps + s) * 2 * TILE + part * 256);
                    });
    }

    void pack_rows(int64_t term, int64_t steps, bf16* to) const {
        for (int64_t i = 0; i < num_panels() * EDGE; ++i)
            for (int64_t s = 0; s < steps; ++s) {
                int64_t item = begin + i, first = term + s * STEP, count = item < end ? terms - first : 0;
                __mmask32 mask = count >= STEP ? ~0u : count > 0 ? (1u << count) - 1 : 0;
                __m512i row = _mm512_maskz_loadu_epi16(mask, matrix + item * terms + first);
                _mm512_store_si512(to + (i / EDGE * steps + s) * 2 * TILE + i % EDGE * STEP, row);
            }
    }

    // One panel of B.
    void pack_b(int64_t term, int64_t steps, int64_t panel, bf16* to) const {
        for (int64_t half = 0; half < 2 * steps; ++half)
            piece<16, 32>(term + half * 16, begin + panel * EDGE, [&](const bf16* from, int64_t stride) {
                pack_pairs(from, stride, to + half / 2 * 2 * TILE + half % 2 * 256);
            });
    }
};

// The first `width` of 16 sums. They are written past the caches, which they would only leave again.
void write_half(float* to, __m512 sums, int64_t width, bool accumulate) {
    if (width >= 16 && !accumulate && uintptr_t(to) % 64 == 0) {
        _mm512_stream_ps(to, sums);
    } else if (width > 0) {
        __mmask16 mask = width >= 16 ? 0xffff : (1 << width) - 1;
        if (accumulate) sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, to));
        _mm512_mask_storeu_ps(to, mask, sums);
    }
}

// Rows [a.begin, a.end) x columns [b.begin, b.end) of a product.
void product_block(const Side& a, const Side& b, float* out, bool accumulate) {
    int64_t rows = a.num_panels(), columns = b.num_panels(), terms = a.terms;
    float* sums = (float*)scratch(rows * columns * BLOCK * sizeof(float) + (rows + 1) * EDGE * DEPTH * sizeof(bf16));
    bf16 *packed_b = (bf16*)(sums + rows * columns * BLOCK), *packed_a = packed_b + EDGE * DEPTH;
    // Runs of equal length: a short one costs as much traffic of sums as a long one.
    int64_t runs = (terms + DEPTH - 1) / DEPTH, depth = steps_of((terms + runs - 1) / runs) * STEP;
    for (int64_t start = 0; start < terms; start += depth) {
        int64_t steps = steps_of(std::min(depth, terms - start));
        a.pack_a(start, steps, packed_a);
        for (int64_t j = 0; j < columns; ++j) {
            b.pack_b(start, steps, j, packed_b);
            const char* soon = (const char*)(b.matrix + start * b.items + b.begin + (j + 1) * EDGE);
            int64_t stride = b.items * sizeof(bf16), each = (steps * STEP + rows * steps - 1) / (rows * steps);
            for (int64_t i = 0; i < rows; ++i)
                multiply(packed_a + i * steps * 2 * TILE, packed_b, sums + (j * rows + i) * BLOCK, steps, start == 0,
                         [&](int64_t) {
                             for (int64_t k = 0; k < each; ++k, soon += stride) _mm_prefetch(soon, _MM_HINT_T1);
                         });
        }
    }
    for (int64_t i = 0; i < a.end - a.begin; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
            __m512 low, high;
            row_of(sums + (j * rows + i / EDGE) * BLOCK, i % EDGE, low, high);
            float* to = out + (a.begin + i) * b.items + b.begin + j * EDGE;
            write_half(to, low, b.end - b.begin - j * EDGE, accumulate);
            write_half(to + 16, high, b.end - b.begin - j * EDGE - 16, accumulate);
        }
    }
    _mm_sfence();
}

// Into how many blocks a product is cut, so that the sums of a block stay in the second cache, threads have equally
// much to do, and packing, which every block repeats, costs least. It bears on no result.
struct Cuts {
    int64_t rows, columns;
};

Cuts cuts_of(int64_t rows, int64_t columns, int64_t threads) {
    constexpr int64_t MOST = 288;  // of a block's sums, in blocks of a tile product
    Cuts best{1, 1};
    double least = INFINITY;
    for (int64_t across = 1; across <= columns; ++across) {
        int64_t width = (columns + across - 1) / across, tallest = std::max<int64_t>(1, MOST / width);
        int64_t fewest = (rows + tallest - 1) / tallest;
        for (int64_t down = fewest; down < fewest + threads && down <= rows; ++down) {
            int64_t height = (rows + down - 1) / down, rounds = (down * across + threads - 1) / threads;
            double cost = double(rounds * (32 * height * width + 80 * height + 57 * width));
            if (cost < least) least = cost, best = {down, across};
        }
    }
    return best;
}

}  // namespace

// out [rows, columns] (+)= A B, summed over `terms`: A is [terms, rows], or [rows, terms] with `rows_first`; B is
// [terms, columns].
KERNEL void oarlock_product(const bf16* a, const bf16* b, float* out, int64_t terms, int64_t rows, int64_t columns,
                            int64_t rows_first, int64_t accumulate) {
    if (terms == 0 || rows == 0 || columns == 0) {
        if (!accumulate) std::fill(out, out + rows * columns, 0.0f);
        return;
    }
    Cuts cuts = cuts_of(panels(rows), panels(columns), omp_get_max_threads());
    int64_t height = (panels(rows) + cuts.rows - 1) / cuts.rows * EDGE;
    int64_t width = (panels(columns) + cuts.columns - 1) / cuts.columns * EDGE;
    int64_t across = (columns + width - 1) / width, blocks = (rows + height - 1) / height * across;
#pragma omp parallel if (blocks > 1)
    {
        Tiles tiles;
#pragma omp for schedule(dynamic, 1)
        for (int64_t block = 0; block < blocks; ++block) {
            int64_t row = block / across * height, column = block % across * width;
            product_block({a, terms, rows, row, std::min(rows, row + height), rows_first != 0},
                          {b, terms, columns, column, std::min(columns, column + width), false}, out, accumulate);
        }
    }
}

#endif
