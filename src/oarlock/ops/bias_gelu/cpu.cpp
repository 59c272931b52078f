// Bias and GELU, one pass over memory each way.
#include "gelu.h"

namespace {

constexpr int64_t ROWS = 32;

template <class T>
void forward(const void* x, const void* bias, void* out, int64_t rows, int64_t columns, bool tanh) {
    Floats shifts = widened((const T*)bias, columns);
    const Gelu& fitted = Gelu::fitted(tanh);
    parallel_pieces(rows, ROWS, [=, &fitted, shift = shifts.get()](int64_t begin, int64_t end) {
        const Gelu gelu = fitted;
        for (int64_t r = begin; r < end; ++r) {
            const T* from = (const T*)x + r * columns;
            T* to = (T*)out + r * columns;
            write_row(to, columns, [=](int64_t c) { return gelu.value(widen(from[c]) + shift[c]); });
        }
    });
}

template <class T>
void backward(const void* grad, const void* x, const void* bias, void* grad_x, float* grad_bias, int64_t rows,
              int64_t columns, bool tanh) {
    int64_t pieces = (rows + ROWS - 1) / ROWS;
    Floats sums = floats(pieces * columns), shifts = widened((const T*)bias, columns);
    const Gelu& fitted = Gelu::fitted(tanh);
    parallel_pieces(rows, ROWS, [=, &fitted, all = sums.get(), shift = shifts.get()](int64_t begin, int64_t end) {
        const Gelu gelu = fitted;
        float* sum = all + begin / ROWS * columns;
        std::fill(sum, sum + columns, 0.0f);
        for (int64_t r = begin; r < end; ++r) {
            const T *from = (const T*)x + r * columns, *g = (const T*)grad + r * columns;
            T* to = (T*)grad_x + r * columns;
            write_row(to, columns, [=](int64_t c) {
                float pulled = widen(g[c]) * gelu.derivative(widen(from[c]) + shift[c]);
                sum[c] += pulled;
                return pulled;
            });
        }
    });
    add_pieces(sums.get(), pieces, columns, grad_bias);
}

}  // namespace

KERNEL void oarlock_bias_gelu_forward(const void* x, const void* bias, void* out, int64_t rows, int64_t columns,
                                      int64_t tanh, int64_t wide) {
    (wide ? forward<float> : forward<bf16>)(x, bias, out, rows, columns, tanh);
}

KERNEL void oarlock_bias_gelu_backward(const void* grad, const void* x, const void* bias, void* grad_x,
                                       float* grad_bias, int64_t rows, int64_t columns, int64_t tanh, int64_t wide) {
    (wide ? backward<float> : backward<bf16>)(grad, x, bias, grad_x, grad_bias, rows, columns, tanh);
}
