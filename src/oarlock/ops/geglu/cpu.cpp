// GeGLU, one pass over memory each way.
#include "gelu.h"

namespace {

constexpr int64_t ROWS = 32;

template <class T>
void forward(const void* x, void* out, int64_t rows, int64_t columns) {
    parallel_pieces(rows, ROWS, [=, &fitted = Gelu::fitted(false)](int64_t begin, int64_t end) {
        const Gelu gelu = fitted;
        for (int64_t r = begin; r < end; ++r) {
            const T *a = (const T*)x + r * 2 * columns, *b = a + columns;
            T* to = (T*)out + r * columns;
            write_row(to, columns, [=](int64_t c) { return gelu.value(widen(a[c])) * widen(b[c]); });
        }
    });
}

template <class T>
void backward(const void* grad, const void* x, void* grad_x, int64_t rows, int64_t columns) {
    parallel_pieces(rows, ROWS, [=, &fitted = Gelu::fitted(false)](int64_t begin, int64_t end) {
        const Gelu gelu = fitted;
        for (int64_t r = begin; r < end; ++r) {
            const T *a = (const T*)x + r * 2 * columns, *b = a + columns, *g = (const T*)grad + r * columns;
            T* to = (T*)grad_x + r * 2 * columns;
            write_row(to, columns, [=](int64_t c) { return widen(g[c]) * widen(b[c]) * gelu.derivative(widen(a[c])); });
            write_row(to + columns, columns, [=](int64_t c) { return widen(g[c]) * gelu.value(widen(a[c])); });
        }
    });
}

}  // namespace

KERNEL void oarlock_geglu_forward(const void* x, void* out, int64_t rows, int64_t columns, int64_t wide) {
    (wide ? forward<float> : forward<bf16>)(x, out, rows, columns);
}

KERNEL void oarlock_geglu_backward(const void* grad, const void* x, void* grad_x, int64_t rows, int64_t columns,
                                   int64_t wide) {
    (wide ? backward<float> : backward<bf16>)(grad, x, grad_x, rows, columns);
}
