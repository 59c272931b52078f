// GELU and its derivative, exact (by erf) and by tanh; formulas in bias_gelu/__init__.py.
//
// gelu(x) = x (1/2 + share(x)) and gelu'(x) = 1/2 + slope(x), where share and slope are odd and reach 1/2 far out. Neither
// needs an exponential or a division then: each is x times a polynomial in x^2.
#pragma once

#include "common.h"

// An odd function that is 1/2 beyond BOUND, interpolated at SIZE Chebyshev nodes of x^2 in [0, BOUND^2].
template <int SIZE>
class OddStep {
    static constexpr float BOUND = 5.5f, TO_UNIT = 2.0f / (BOUND * BOUND);
    float coefficients[SIZE];  // of powers of u = TO_UNIT x^2 - 1, which lies in [-1, 1]: no term outgrows the sum

  public:
    template <class Function>
    explicit OddStep(Function f) {
        // Chebyshev's coefficients, then the recurrence T(k + 1) = 2 u T(k) - T(k - 1) on coefficients of powers.
        double values[SIZE], sums[SIZE] = {}, last[SIZE] = {}, now[SIZE] = {1.0};
        for (int i = 0; i < SIZE; ++i) {
            double x = BOUND * std::sqrt((std::cos(angle(i)) + 1.0) / 2.0);
            values[i] = f(x) / x;
        }
        for (int k = 0; k < SIZE; ++k) {
            double coefficient = 0.0;
            for (int i = 0; i < SIZE; ++i) coefficient += values[i] * std::cos(k * angle(i)) * (k ? 2.0 : 1.0) / SIZE;
            double next[SIZE] = {};
            for (int i = 0; i < SIZE; ++i) {
                sums[i] += coefficient * now[i];
                next[i] = (i ? (k ? 2.0 : 1.0) * now[i - 1] : 0.0) - last[i];
            }
            std::copy(now, now + SIZE, last);
            std::copy(next, next + SIZE, now);
        }
        std::copy(sums, sums + SIZE, coefficients);
    }

    float operator()(float x) const {
        float u = x * x * TO_UNIT - 1.0f, sum = coefficients[SIZE - 1];
        for (int i = SIZE - 2; i >= 0; --i) sum = sum * u + coefficients[i];
        return u > 1.0f ? std::copysign(0.5f, x) : x * sum;
    }

  private:
    static double angle(int i) { return (i + 0.5) * 3.14159265358979323846 / SIZE; }
};

// share is off by at most 2e-7, and slope by 6e-7 (tanh: 5e-7 and 1.5e-6), roundings in fp32 included. Take a copy into
// a kernel's inner scope: coefficients then stay in registers.
struct Gelu {
    OddStep<15> share;
    OddStep<17> slope;

    float value(float x) const { return x * (0.5f + share(x)); }
    float derivative(float x) const { return 0.5f + slope(x); }

    static const Gelu& fitted(bool tanh) {
        constexpr double ROOT_HALF = 0.70710678118654752440, ROOT_2_OVER_PI = 0.79788456080286535588, CUBIC = 0.044715;
        static const Gelu exact{
            OddStep<15>([](double x) { return 0.5 * std::erf(x * ROOT_HALF); }),
            OddStep<17>([](double x) {
                return 0.5 * std::erf(x * ROOT_HALF) + 0.5 * x * ROOT_2_OVER_PI * std::exp(-0.5 * x * x);
            }),
        };
        static const Gelu bent{
            OddStep<15>([](double x) { return 0.5 * std::tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x)); }),
            OddStep<17>([](double x) {
                double y = std::tanh(ROOT_2_OVER_PI * (x + CUBIC * x * x * x));
                return 0.5 * y + 0.5 * x * (1.0 - y * y) * ROOT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x);
            }),
        };
        return tanh ? bent : exact;
    }
};
