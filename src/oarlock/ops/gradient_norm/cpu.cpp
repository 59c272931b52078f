// The norm of many tensors, one pass over memory.
#include "lists.h"

namespace {

template <class T>
float norm_of(const T* const* tensors, const int64_t* sizes, int64_t num_tensors) {
    std::vector<Piece> pieces = pieces_of(sizes, num_tensors);
    std::vector<double> squares(pieces.size());
    parallel_over(pieces, [&](Piece piece, size_t index) {
        const T* x = tensors[piece.tensor];
        squares[index] = sum_of(piece.begin, piece.end, [&](int64_t i) { return widen(x[i]) * widen(x[i]); });
    });
    double sum = 0;
    for (double square : squares) sum += square;
    return float(std::sqrt(sum));
}

}  // namespace

KERNEL void oarlock_gradient_norm(const void* const* tensors, const int64_t* sizes, float* out, int64_t num_tensors,
                                  int64_t wide) {
    *out = wide ? norm_of((const float* const*)tensors, sizes, num_tensors)
                : norm_of((const bf16* const*)tensors, sizes, num_tensors);
}
