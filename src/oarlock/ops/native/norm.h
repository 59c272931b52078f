// LayerNorm of one row at a time, its statistics in fp32 from two passes over a row that lies in the first-level cache.
#pragma once

#include "common.h"

struct Stats {
    float mean, scale;  // scale: the reciprocal deviation
};

template <class F>
inline float sum_of(F f, int64_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) sum += f(i);
    return sum;
}

constexpr int64_t TOGETHER = 8;

// Mean and reciprocal deviation of `rows` rows, at most TOGETHER. Step by step for all of them: what a row's sum has to
// wait for is filled with the next row's.
inline void stats_of(const float* x, int64_t rows, int64_t columns, float epsilon, Stats* out) {
    for (int64_t r = 0; r < rows; ++r) {
        const float* row = x + r * columns;
        out[r].mean = sum_of([row](int64_t c) { return row[c]; }, columns) / float(columns);
    }
    for (int64_t r = 0; r < rows; ++r) {
        const float *row = x + r * columns, mean = out[r].mean;
        out[r].scale = sum_of([row, mean](int64_t c) { return (row[c] - mean) * (row[c] - mean); }, columns);
    }
    for (int64_t r = 0; r < rows; ++r) out[r].scale = 1.0f / std::sqrt(out[r].scale / float(columns) + epsilon);
}

// Writes the gradient of a norm's input to `out`, from the gradient `grad(c)` of its result and its input `total(c)`,
// and adds the row's share to the gradients of weight and bias. `unit` is scratch of one row.
template <class Grad, class Total>
inline void norm_backward(Grad grad, Total total, Stats stats, const float* weight, int64_t columns, float* unit,
                          float* out, float* grad_weight, float* grad_bias) {
    float sum = 0.0f, product = 0.0f;
#pragma omp simd reduction(+ : sum, product)
    for (int64_t c = 0; c < columns; ++c) {
        float g = grad(c), u = (total(c) - stats.mean) * stats.scale, pulled = g * weight[c];
        unit[c] = u;
        out[c] = pulled;
        sum += pulled;
        product += pulled * u;
        grad_weight[c] += g * u;
        grad_bias[c] += g;
    }
    float mean = sum / float(columns), along = product / float(columns);
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) out[c] = (out[c] - mean - unit[c] * along) * stats.scale;
}
