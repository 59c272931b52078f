// Work on many tensors at once: cut into pieces of one size, whatever the tensors' sizes, for threads to share equally.
#pragma once

#include "common.h"

struct Piece {
    int64_t tensor, begin, end;
};

inline std::vector<Piece> pieces_of(const int64_t* sizes, int64_t num_tensors) {
    constexpr int64_t MOST = 1 << 16;  // elements
    std::vector<Piece> pieces;
    for (int64_t i = 0; i < num_tensors; ++i)
        for (int64_t begin = 0; begin < sizes[i]; begin += MOST)
            pieces.push_back({i, begin, std::min(sizes[i], begin + MOST)});
    return pieces;
}

// Calls f(piece, its index) for every piece, in parallel.
template <class F>
inline void parallel_over(const std::vector<Piece>& pieces, F f) {
#pragma omp parallel for schedule(dynamic, 1) if (pieces.size() > 1)
    for (size_t i = 0; i < pieces.size(); ++i) f(pieces[i], i);
}

// The sum of f(i) over [begin, end): in fp32 over a short run, in fp64 from run to run.
template <class F>
inline double sum_of(int64_t begin, int64_t end, F f) {
    constexpr int64_t RUN = 1024;
    double sum = 0;
    for (int64_t start = begin; start < end; start += RUN) {
        float part = 0;
#pragma omp simd reduction(+ : part)
        for (int64_t i = start; i < std::min(end, start + RUN); ++i) part += f(i);
        sum += part;
    }
    return sum;
}
