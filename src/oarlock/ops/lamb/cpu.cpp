// LAMB of many tensors: a pass that brings the moments up to date and measures weights and updates, and a pass that
// works the updates out again and takes the step.
#include "lists.h"

namespace {

struct Settings {
    float inverse_scale, beta1, beta2, rest1, rest2, epsilon, decay;
};

// What a tensor's moments are multiplied by: 1 / (1 - beta^steps).
struct Corrections {
    float first, second;
};

inline float update_of(float w, float m, float v, const Corrections& by, const Settings& set) {
    return m * by.first / (std::sqrt(v * by.second) + set.epsilon) + set.decay * w;
}

inline float moment(float old, float now, float beta, float rest) { return beta * old + rest * now; }

// Brings the moments of a piece up to date; the squares of its weights and of its updates are added up.
void measure(const float* w, const float* g, float* m, float* v, Piece piece, const Corrections& by,
             const Settings& set, double& weights, double& updates) {
    constexpr int64_t RUN = 1024;
    weights = updates = 0;
    for (int64_t start = piece.begin; start < piece.end; start += RUN) {
        int64_t end = std::min(piece.end, start + RUN);
        float weight = 0, update = 0;
#pragma omp simd reduction(+ : weight, update)
        for (int64_t i = start; i < end; ++i) {
            float grad = g[i] * set.inverse_scale;
            m[i] = moment(m[i], grad, set.beta1, set.rest1);
            v[i] = moment(v[i], grad * grad, set.beta2, set.rest2);
            float u = update_of(w[i], m[i], v[i], by, set);
            weight += w[i] * w[i];
            update += u * u;
        }
        weights += weight;
        updates += update;
    }
}

void take_step(float* w, const float* m, const float* v, Piece piece, const Corrections& by, const Settings& set,
               float step) {
#pragma omp simd
    for (int64_t i = piece.begin; i < piece.end; ++i) w[i] -= step * update_of(w[i], m[i], v[i], by, set);
}

std::vector<Corrections> corrections(const float* const* steps, int64_t num_tensors, double beta1, double beta2) {
    std::vector<Corrections> by(num_tensors);
    for (int64_t i = 0; i < num_tensors; ++i)
        by[i] = {float(1 / (1 - std::pow(beta1, *steps[i]))), float(1 / (1 - std::pow(beta2, *steps[i])))};
    return by;
}

}  // namespace

// Squares [2, num_tensors], of weights and of updates, zeros before.
KERNEL void oarlock_lamb_measure(const float* const* weights, const float* const* gradients, float* const* first,
                                 float* const* second, float* const* steps, const int64_t* sizes,
                                 const float* grad_scale, const float* found_inf, double* squares, int64_t num_tensors,
                                 double beta1, double beta2, double epsilon, double decay) {
    if (*found_inf != 0) return;
    Settings set{1 / *grad_scale,  float(beta1),   float(beta2), float(1 - beta1),
                 float(1 - beta2), float(epsilon), float(decay)};
    for (int64_t i = 0; i < num_tensors; ++i) *steps[i] += 1;
    auto by = corrections(steps, num_tensors, beta1, beta2);
    std::vector<Piece> pieces = pieces_of(sizes, num_tensors);
    std::vector<double> of_weights(pieces.size()), of_updates(pieces.size());
    parallel_over(pieces, [&](Piece piece, size_t i) {
        measure(weights[piece.tensor], gradients[piece.tensor], first[piece.tensor], second[piece.tensor], piece,
                by[piece.tensor], set, of_weights[i], of_updates[i]);
    });
    for (size_t i = 0; i < pieces.size(); ++i) {
        squares[pieces[i].tensor] += of_weights[i];
        squares[num_tensors + pieces[i].tensor] += of_updates[i];
    }
}

KERNEL void oarlock_lamb_apply(float* const* weights, const float* const* first, const float* const* second,
                               const float* const* steps, const int64_t* sizes, const double* squares,
                               const float* found_inf, int64_t num_tensors, double lr, double beta1, double beta2,
                               double epsilon, double decay, int64_t trust) {
    if (*found_inf != 0) return;
    Settings set{1, float(beta1), float(beta2), float(1 - beta1), float(1 - beta2), float(epsilon), float(decay)};
    auto by = corrections(steps, num_tensors, beta1, beta2);
    parallel_over(pieces_of(sizes, num_tensors), [&](Piece piece, size_t) {
        int64_t i = piece.tensor;
        double weight = squares[i], update = squares[num_tensors + i];
        double ratio = trust && weight > 0 && update > 0 ? std::sqrt(weight / update) : 1;
        take_step(weights[i], first[i], second[i], piece, by[i], set, float(lr * ratio));
    });
}
