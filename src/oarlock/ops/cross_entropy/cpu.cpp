// Cross entropy of rows of logits: losses, and the logits' gradients in their place.
#include "common.h"

namespace {

constexpr int64_t ROWS = 4;     // whose gradients are added up in the first cache
constexpr int64_t PIECE = 32;   // rows
constexpr int64_t SPAN = 512;   // columns whose largest is found before their exponentials are added up

// e^x for x <= 0, to about 2 units in the last place; 0 below -87.3 (Cephes' polynomial on [-ln 2 / 2, ln 2 / 2]).
inline float exp_below(float x) {
    float n = std::nearbyintf((x < -87.3f ? -87.3f : x) * 1.44269504088896341f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return x < -87.3f ? 0.0f : p * power;  // NaN stays NaN
}

// The largest logit of a row and log(sum e^logit). With `tops`, the largest logit so far at every span, the logits are
// replaced by their exponentials over that.
template <class T>
void row_sums(T* row, const T* bias, int64_t columns, float& largest, float& log_sum, float* tops) {
    largest = -INFINITY;
    double sum = 0;
    float powers[SPAN];
    for (int64_t begin = 0; begin < columns; begin += SPAN) {
        int64_t end = std::min(columns, begin + SPAN);
        float top = largest, part = 0;
#pragma omp simd reduction(max : top)
        for (int64_t c = begin; c < end; ++c) top = std::max(top, widen(row[c]) + widen(bias[c]));
        if (top > largest) sum *= std::exp(double(largest) - top), largest = top;
        if (tops != nullptr) {
            tops[begin / SPAN] = top;
#pragma omp simd reduction(+ : part)
            for (int64_t c = begin; c < end; ++c) {
                powers[c - begin] = exp_below(widen(row[c]) + widen(bias[c]) - top);
                part += powers[c - begin];
            }
            narrow_row(powers, row + begin, end - begin);
        } else {
#pragma omp simd reduction(+ : part)
            for (int64_t c = begin; c < end; ++c) part += exp_below(widen(row[c]) + widen(bias[c]) - top);
        }
        sum += part;
    }
    log_sum = float(largest + std::log(sum));
}

// Whether the target is the first of the largest logits.
template <class T>
bool hits_target(const T* row, const T* bias, int64_t target, float largest) {
    if (widen(row[target]) + widen(bias[target]) < largest) return false;
    for (int64_t c = 0; c < target; ++c)
        if (widen(row[c]) + widen(bias[c]) == largest) return false;
    return true;
}

// Gradients of a few rows in place of their exponentials, added to the sums of the columns.
template <class T>
void gradients(T* powers, const int64_t* targets, const float* of_targets, const float* log_sums, const float* tops,
               float* sums, int64_t rows, int64_t columns, int64_t vocab, float scale) {
    int64_t spans = (vocab + SPAN - 1) / SPAN;
    for (int64_t s = 0; s < spans; ++s) {
        int64_t begin = s * SPAN, width = std::min(vocab - begin, SPAN);
        float grads[SPAN], totals[SPAN] = {};
        for (int64_t r = 0; r < rows; ++r) {
            T* row = powers + r * columns + begin;
            float factor = scale * std::exp(tops[r * spans + s] - log_sums[r]);
#pragma omp simd
            for (int64_t c = 0; c < width; ++c) {
                grads[c] = factor * widen(row[c]);
                totals[c] += grads[c];
            }
            narrow_row(grads, row, width);
        }
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) sums[begin + c] += totals[c];
    }
    for (int64_t r = 0; r < rows; ++r) {
        T* row = powers + r * columns;
        row[targets[r]] = narrow<T>(scale * (std::exp(of_targets[r] - log_sums[r]) - 1.0f));
        sums[targets[r]] -= scale;
        std::fill(row + vocab, row + columns, T{});
    }
}

template <class T>
void rows_of(T* logits, const T* bias, const int64_t* targets, double* loss, int64_t* num_hits, float* grad_bias,
             int64_t rows, int64_t columns, int64_t vocab, float scale, bool with_gradients) {
    int64_t pieces = (rows + PIECE - 1) / PIECE;
    std::vector<float> sums(with_gradients ? pieces * columns : 0, 0.0f);
    std::vector<float> losses(rows);
    std::vector<char> hits(rows);
    parallel_pieces(rows, PIECE, [&](int64_t first, int64_t last) {
        int64_t spans = (vocab + SPAN - 1) / SPAN;
        float* sum = sums.data() + (with_gradients ? first / PIECE * columns : 0);
        std::vector<float> tops(with_gradients ? ROWS * spans : 0);
        for (int64_t begin = first; begin < last; begin += ROWS) {
            int64_t end = std::min(last, begin + ROWS);
            float log_sums[ROWS], of_targets[ROWS];
            for (int64_t r = begin, i = 0; r < end; ++r, ++i) {
                T* row = logits + r * columns;
                float largest;
                of_targets[i] = widen(row[targets[r]]) + widen(bias[targets[r]]);
                row_sums(row, bias, vocab, largest, log_sums[i], with_gradients ? &tops[i * spans] : nullptr);
                losses[r] = log_sums[i] - of_targets[i];
                hits[r] = !with_gradients && hits_target(row, bias, targets[r], largest);
            }
            if (!with_gradients) continue;
            T* powers = logits + begin * columns;
            gradients(powers, targets + begin, of_targets, log_sums, tops.data(), sum, end - begin, columns, vocab, scale);
        }
    });
    for (int64_t r = 0; r < rows; ++r) *loss += losses[r], *num_hits += hits[r];
    if (with_gradients) add_pieces(sums.data(), pieces, columns, grad_bias);
}

}  // namespace

// Logits [rows, columns], of which the first `vocab` count, without their bias; targets int64, all below `vocab`. Adds to
// `loss` and `num_hits`; with gradients, writes those of the logits over them, and their column sums.
KERNEL void oarlock_cross_entropy(void* logits, const void* bias, const int64_t* targets, double* loss,
                                  int64_t* num_hits, float* grad_bias, int64_t rows, int64_t columns, int64_t vocab,
                                  double scale, int64_t with_gradients, int64_t wide) {
    if (wide)
        rows_of((float*)logits, (const float*)bias, targets, loss, num_hits, grad_bias, rows, columns, vocab,
                float(scale), with_gradients);
    else
        rows_of((bf16*)logits, (const bf16*)bias, targets, loss, num_hits, grad_bias, rows, columns, vocab,
                float(scale), with_gradients);
}
