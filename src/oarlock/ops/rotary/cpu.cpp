// Rotary positions, one pass over memory.
#include "common.h"

namespace {

constexpr int64_t ROWS = 16;

// HALF is half a head, where it is known beforehand; else 0.
template <class T, int64_t HALF>
void turn(const T* qkv, const int64_t* positions, const float* cos, const float* sin, T* out, int64_t tokens,
          int64_t heads, int64_t any_half, float sign) {
    const int64_t half = HALF ? HALF : any_half, width = heads * 2 * half;
    parallel_pieces(tokens, ROWS, [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            const float *x_axis = cos + positions[t] * half, *y_axis = sin + positions[t] * half;
            const T* from = qkv + t * 3 * width;
            T* to = out + t * 3 * width;
            for (int64_t start = 0; start < 2 * width; start += 2 * half)
#pragma omp simd
                for (int64_t i = start; i < start + half; ++i) {
                    float x = widen(from[i]), y = widen(from[i + half]);
                    float c = x_axis[i - start], s = sign * y_axis[i - start];
                    to[i] = narrow<T>(x * c - y * s);
                    to[i + half] = narrow<T>(y * c + x * s);
                }
            std::memcpy(to + 2 * width, from + 2 * width, width * sizeof(T));
        }
    });
}

template <class T>
void turn(const void* qkv, const int64_t* positions, const float* cos, const float* sin, void* out, int64_t tokens,
          int64_t heads, int64_t half, float sign) {
    (half == 32 ? turn<T, 32> : turn<T, 0>)((const T*)qkv, positions, cos, sin, (T*)out, tokens, heads, half, sign);
}

}  // namespace

// Writes whether a position lies outside the table to `outside`; if so, nothing else.
KERNEL void oarlock_rotary_turn(const void* qkv, const int64_t* positions, const float* cos, const float* sin,
                                void* out, int64_t* outside, int64_t tokens, int64_t heads, int64_t half,
                                int64_t table_rows, int64_t back, int64_t wide) {
    *outside = any_outside(positions, tokens, table_rows);
    if (!*outside)
        (wide ? turn<float> : turn<bf16>)(qkv, positions, cos, sin, out, tokens, heads, half, back ? -1.0f : 1.0f);
}
