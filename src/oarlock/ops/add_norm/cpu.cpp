// Dropout, residual sum and LayerNorm, one pass over memory each way.
#include "norm.h"

namespace {

constexpr int64_t ROWS = 64;

// Stores a row, and leaves what was stored.
inline void round_row(float* wide, float* to, int64_t columns) { narrow_row(wide, to, columns); }

inline void round_row(float* wide, bf16* to, int64_t columns) {
    narrow_row(wide, to, columns);
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) wide[c] = widen(to[c]);
}

template <class T>
struct Forward {
    const T *x, *residual, *weight, *bias;
    T *normed, *total;
    Stats* stats;
    int64_t rows, columns;
    float epsilon;

    template <bool DROPS>
    void run(const dropout::Decisions& decisions) const {
        Floats scale = widened(weight, columns), shift = widened(bias, columns);
        parallel_pieces(rows, ROWS, [&](int64_t begin, int64_t end) {
            auto lanes = scratch<int16_t>(decisions.num_lanes());
            Floats sums = floats(TOGETHER * columns);
            const float *by = scale.get(), *plus = shift.get();
            for (int64_t first = begin; first < end; first += TOGETHER) {
                int64_t rows_here = std::min(end - first, TOGETHER);
                for (int64_t r = first; r < first + rows_here; ++r) {
                    const T *from = x + r * columns, *old = residual + r * columns;
                    float* wide = sums.get() + (r - first) * columns;
                    dropout::Row kept{};
                    if constexpr (DROPS) kept = decisions(r, lanes.get());
#pragma omp simd
                    for (int64_t c = 0; c < columns; ++c)
                        wide[c] = widen(old[c]) + (DROPS ? kept(c, widen(from[c])) : widen(from[c]));
                    round_row(wide, total + r * columns, columns);
                }
                Stats* of = stats + first;
                stats_of(sums.get(), rows_here, columns, epsilon, of);
                for (int64_t r = 0; r < rows_here; ++r) {
                    const float *wide = sums.get() + r * columns, mean = of[r].mean, unit = of[r].scale;
                    write_row(normed + (first + r) * columns, columns,
                              [=](int64_t c) { return (wide[c] - mean) * unit * by[c] + plus[c]; });
                }
            }
        });
    }
};

template <class T>
struct Backward {
    const T *grad_normed, *grad_total, *total;
    const Stats* stats;
    const T* weight;
    T *grad_x, *grad_residual;
    float *grad_weight, *grad_bias;
    int64_t rows, columns;

    template <bool DROPS>
    void run(const dropout::Decisions& decisions) const {
        Floats scale = widened(weight, columns);
        int64_t pieces = (rows + ROWS - 1) / ROWS;
        Floats sums = floats(pieces * 2 * columns);
        float *weight_sums = sums.get(), *bias_sums = weight_sums + pieces * columns;
        parallel_pieces(rows, ROWS, [&](int64_t begin, int64_t end) {
            auto lanes = scratch<int16_t>(decisions.num_lanes());
            Floats unit = floats(columns), inner = floats(columns);
            float *weight_sum = weight_sums + begin / ROWS * columns, *bias_sum = bias_sums + begin / ROWS * columns;
            std::fill(weight_sum, weight_sum + columns, 0.0f);
            std::fill(bias_sum, bias_sum + columns, 0.0f);
            for (int64_t r = begin; r < end; ++r) {
                const T *grad = grad_normed + r * columns, *sum = total + r * columns;
                norm_backward([grad](int64_t c) { return widen(grad[c]); }, [sum](int64_t c) { return widen(sum[c]); },
                              stats[r], scale.get(), columns, unit.get(), inner.get(),
                              weight_sum, bias_sum);
                float* wide = inner.get();
                if (grad_total) {
                    const T* more = grad_total + r * columns;
#pragma omp simd
                    for (int64_t c = 0; c < columns; ++c) wide[c] += widen(more[c]);
                }
                narrow_row(wide, grad_residual + r * columns, columns);
                if constexpr (DROPS) {
                    dropout::Row kept = decisions(r, lanes.get());
                    write_row(grad_x + r * columns, columns, [=](int64_t c) { return kept(c, wide[c]); });
                }
            }
        });
        add_pieces(weight_sums, pieces, columns, grad_weight);
        add_pieces(bias_sums, pieces, columns, grad_bias);
    }
};

template <class Pass>
void run(const Pass& pass, const int64_t* keys, double probability) {
    dropout::Decisions decisions(keys, pass.columns, probability);
    if (probability != 0.0)
        pass.template run<true>(decisions);
    else
        pass.template run<false>(decisions);
}

template <class T>
void forward(const void* x, const void* residual, const void* weight, const void* bias, const int64_t* keys,
             void* normed, void* total, Stats* stats, int64_t rows, int64_t columns, double epsilon, double dropout) {
    run(Forward<T>{(const T*)x, (const T*)residual, (const T*)weight, (const T*)bias, (T*)normed, (T*)total, stats,
                   rows, columns, float(epsilon)},
        keys, dropout);
}

template <class T>
void backward(const void* grad_normed, const void* grad_total, const void* total, const Stats* stats,
              const void* weight, const int64_t* keys, void* grad_x, void* grad_residual, float* grad_weight,
              float* grad_bias, int64_t rows, int64_t columns, double dropout) {
    run(Backward<T>{(const T*)grad_normed, (const T*)grad_total, (const T*)total, stats, (const T*)weight, (T*)grad_x,
                    (T*)grad_residual, grad_weight, grad_bias, rows, columns},
        keys, dropout);
}

}  // namespace

KERNEL void oarlock_add_norm_forward(const void* x, const void* residual, const void* weight, const void* bias,
                                     const int64_t* keys, void* normed, void* total, Stats* stats, int64_t rows,
                                     int64_t columns, double epsilon, double dropout, int64_t wide) {
    (wide ? forward<float> : forward<bf16>)(x, residual, weight, bias, keys, normed, total, stats, rows, columns,
                                            epsilon, dropout);
}

KERNEL void oarlock_add_norm_backward(const void* grad_normed, const void* grad_total, const void* total,
                                      const Stats* stats, const void* weight, const int64_t* keys, void* grad_x,
                                      void* grad_residual, float* grad_weight, float* grad_bias, int64_t rows,
                                      int64_t columns, double dropout, int64_t wide) {
    (wide ? backward<float> : backward<bf16>)(grad_normed, grad_total, total, stats, weight, keys, grad_x,
                                              grad_residual, grad_weight, grad_bias, rows, columns, dropout);
}
