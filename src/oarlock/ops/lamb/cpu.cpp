// LAMB of many tensors: a pass that brings the moments up to date and measures weights and updates, and a pass that
// works the updates out again and takes the step. Without the trust ratio one pass does both.
#include "lists.h"

namespace {

struct Tensors {
    float* const* weights;
    const float* const* gradients;
    float* const* first;
    float* const* second;
};

struct Settings {
    float inverse_scale, lr, beta1, beta2, rest1, rest2, epsilon, decay;
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
void measure(const Tensors& of, Piece piece, const Corrections& by, const Settings& set, double& weights,
             double& updates) {
    constexpr int64_t RUN = 1024;
    const float *w = of.weights[piece.tensor], *g = of.gradients[piece.tensor];
    float *m = of.first[piece.tensor], *v = of.second[piece.tensor];
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

void take_step(const Tensors& of, Piece piece, const Corrections& by, const Settings& set, float step) {
    float* w = of.weights[piece.tensor];
    const float *m = of.first[piece.tensor], *v = of.second[piece.tensor];
#pragma omp simd
    for (int64_t i = piece.begin; i < piece.end; ++i) w[i] -= step * update_of(w[i], m[i], v[i], by, set);
}

void take_step_at_once(const Tensors& of, Piece piece, const Corrections& by, const Settings& set) {
    float *w = of.weights[piece.tensor], *m = of.first[piece.tensor], *v = of.second[piece.tensor];
    const float* g = of.gradients[piece.tensor];
#pragma omp simd
    for (int64_t i = piece.begin; i < piece.end; ++i) {
        float grad = g[i] * set.inverse_scale;
        m[i] = moment(m[i], grad, set.beta1, set.rest1);
        v[i] = moment(v[i], grad * grad, set.beta2, set.rest2);
        w[i] -= set.lr * update_of(w[i], m[i], v[i], by, set);
    }
}

}  // namespace

KERNEL void oarlock_lamb(float* const* weights, const float* const* gradients, float* const* first,
                         float* const* second, float* const* steps, const int64_t* sizes, const float* grad_scale,
                         const float* found_inf, int64_t num_tensors, double lr, double beta1, double beta2,
                         double epsilon, double decay, int64_t trust) {
    if (*found_inf != 0) return;
    Tensors of{weights, gradients, first, second};
    Settings set{1 / *grad_scale,  float(lr),        float(beta1),   float(beta2),
                 float(1 - beta1), float(1 - beta2), float(epsilon), float(decay)};
    std::vector<Corrections> by(num_tensors);
    for (int64_t i = 0; i < num_tensors; ++i) {
        double count = *steps[i] += 1;
        by[i] = {float(1 / (1 - std::pow(beta1, count))), float(1 / (1 - std::pow(beta2, count)))};
    }
    std::vector<Piece> pieces = pieces_of(sizes, num_tensors);
    if (!trust) {
        parallel_over(pieces, [&](Piece piece, size_t) { take_step_at_once(of, piece, by[piece.tensor], set); });
        return;
    }
    std::vector<double> of_weights(pieces.size()), of_updates(pieces.size());
    parallel_over(pieces, [&](Piece piece, size_t i) {
        measure(of, piece, by[piece.tensor], set, of_weights[i], of_updates[i]);
    });
    std::vector<double> weight_squares(num_tensors), update_squares(num_tensors);
    for (size_t i = 0; i < pieces.size(); ++i) {
        weight_squares[pieces[i].tensor] += of_weights[i];
        update_squares[pieces[i].tensor] += of_updates[i];
    }
    parallel_over(pieces, [&](Piece piece, size_t) {
        double weight = weight_squares[piece.tensor], update = update_squares[piece.tensor];
        double ratio = weight > 0 && update > 0 ? std::sqrt(weight / update) : 1;
        take_step(of, piece, by[piece.tensor], set, float(lr * ratio));
    });
}
