// Sum of embeddings, LayerNorm and dropout. Backward, the gradient of each token's sum is worked out in the order of the
// first table's rows and added up there and then; it is stored only where there are more tables.
#include "norm.h"

namespace {

constexpr int64_t TOKENS = 64;  // of a piece
constexpr int64_t CLEARED = 128;

template <class T>
struct Embeddings {
    const T* const* tables;
    const int64_t* const* rows;
    int64_t num_tables, columns;

    void sum(int64_t token, float* out) const {
        for (int64_t i = 0; i < num_tables; ++i) {
            const T* from = tables[i] + rows[i][token] * columns;
            if (i == 0) {
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) out[c] = widen(from[c]);
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) out[c] += widen(from[c]);
            }
        }
    }
};

template <class T>
void embed(const Embeddings<T>& embeddings, const T* weight, const T* bias, const int64_t* keys, T* out,
           Stats* stats, int64_t tokens, float epsilon, double probability) {
    int64_t columns = embeddings.columns;
    Floats scale = widened(weight, columns), shift = widened(bias, columns);
    dropout::Decisions decisions(keys, columns, probability);
    parallel_pieces(tokens, TOKENS, [&](int64_t begin, int64_t end) {
        Floats sums = floats(TOGETHER * columns);
        auto lanes = scratch<int16_t>(decisions.num_lanes());
        const float *by = scale.get(), *plus = shift.get();
        for (int64_t first = begin; first < end; first += TOGETHER) {
            int64_t tokens_here = std::min(end - first, TOGETHER);
            for (int64_t t = 0; t < tokens_here; ++t) embeddings.sum(first + t, sums.get() + t * columns);
            Stats* of = stats + first;
            stats_of(sums.get(), tokens_here, columns, epsilon, of);
            for (int64_t t = 0; t < tokens_here; ++t) {
                float *row = sums.get() + t * columns, mean = of[t].mean, unit = of[t].scale;
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) row[c] = (row[c] - mean) * unit * by[c] + plus[c];
                if (probability != 0.0) {
                    dropout::Row kept = decisions(first + t, lanes.get());
#pragma omp simd
                    for (int64_t c = 0; c < columns; ++c) row[c] = kept(c, row[c]);
                }
                narrow_row(row, out + (first + t) * columns, columns);
            }
        }
    });
}

// Tokens by their row of a table, those of one row in their own order. `first[r]` is where row r's tokens begin.
struct Order {
    Scratch<int32_t> tokens, first;

    Order(const int64_t* rows, int64_t num_tokens, int64_t num_rows)
        : tokens(scratch<int32_t>(num_tokens)), first(scratch<int32_t>(num_rows + 1)) {
        std::fill(first.get(), first.get() + num_rows + 1, 0);
        for (int64_t t = 0; t < num_tokens; ++t) ++first[rows[t]];
        int32_t end = 0;
        for (int64_t r = 0; r <= num_rows; ++r) first[r] = end += first[r];
        for (int64_t t = num_tokens; t-- > 0;) tokens[--first[rows[t]]] = int32_t(t);
    }
};

// Zeroes the rows that no token reads.
void clear_unread(const Order& order, float* out, int64_t num_rows, int64_t columns) {
    parallel_pieces(num_rows, CLEARED, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end;) {
            int64_t next = r;
            while (next < end && order.first[next] == order.first[next + 1]) ++next;
            std::memset(out + r * columns, 0, (next - r) * columns * sizeof(float));
            r = next + 1;
        }
    });
}

// Adds up the gradients of each row's tokens. `gradient(piece)` makes a function from token to row for a piece of tokens.
//
// A piece is TOKENS tokens in the order of their rows. It writes the sums of those rows whose tokens it holds all. Rows
// cut by its edges leave one sum at either edge, and those are put together in order at the end.
template <class Gradient>
void sum_by_row(const int64_t* rows, int64_t num_tokens, float* out, int64_t num_rows, int64_t columns,
                Gradient gradient) {
    Order order(rows, num_tokens, num_rows);
    clear_unread(order, out, num_rows, columns);
    int64_t pieces = (num_tokens + TOKENS - 1) / TOKENS;
    Floats edges = floats(pieces * 2 * columns);
    parallel_pieces(num_tokens, TOKENS, [&](int64_t begin, int64_t end) {
        auto row_of = gradient(begin / TOKENS);
        for (int64_t i = begin; i < end;) {
            int64_t row = rows[order.tokens[i]], first = order.first[row], last = order.first[row + 1];
            bool whole = first >= begin && last <= end;
            float* sum = whole ? out + row * columns : edges.get() + (begin / TOKENS * 2 + (first >= begin)) * columns;
            std::memcpy(sum, row_of(order.tokens[i++]), columns * sizeof(float));
            for (; i < std::min(last, end); ++i) {
                const float* more = row_of(order.tokens[i]);
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) sum[c] += more[c];
            }
        }
    });
    parallel_pieces(pieces, 1, [&](int64_t piece, int64_t) {
        int64_t last = std::min((piece + 1) * TOKENS, num_tokens) - 1, row = rows[order.tokens[last]];
        int64_t first = order.first[row], end = order.first[row + 1];
        if (first < piece * TOKENS || end <= last + 1) return;  // begins in an earlier piece, or ends in this one
        float* sum = out + row * columns;
        std::memcpy(sum, edges.get() + (piece * 2 + 1) * columns, columns * sizeof(float));
        for (int64_t next = piece + 1; next * TOKENS < end; ++next) {
            const float* more = edges.get() + next * 2 * columns;
#pragma omp simd
            for (int64_t c = 0; c < columns; ++c) sum[c] += more[c];
        }
    });
}

template <class T>
void pull_back(const Embeddings<T>& embeddings, const T* grad, const Stats* stats, const T* weight,
               const int64_t* keys, float* const* grad_tables, const int64_t* table_rows, float* grad_weight,
               float* grad_bias, int64_t tokens, double probability) {
    int64_t columns = embeddings.columns, pieces = (tokens + TOKENS - 1) / TOKENS;
    Floats scale = widened(weight, columns), sums = floats(pieces * 2 * columns);
    float *weight_sums = sums.get(), *bias_sums = weight_sums + pieces * columns;
    dropout::Decisions decisions(keys, columns, probability);
    bool several = embeddings.num_tables > 1;
    Floats stored = floats(several ? tokens * columns : 0);
    auto worked_out = [&](int64_t piece) {
        float *weight_sum = weight_sums + piece * columns, *bias_sum = bias_sums + piece * columns;
        std::fill(weight_sum, weight_sum + columns, 0.0f);
        std::fill(bias_sum, bias_sum + columns, 0.0f);
        return [&, weight_sum, bias_sum, total = floats(columns), pulled = floats(columns), unit = floats(columns),
                inner = floats(columns), lanes = scratch<int16_t>(decisions.num_lanes())](int64_t t) {
            float* out = several ? stored.get() + t * columns : inner.get();
            const T* from = grad + t * columns;
            float* wide = pulled.get();
            if (probability != 0.0) {
                dropout::Row kept = decisions(t, lanes.get());
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) wide[c] = kept(c, widen(from[c]));
            } else {
#pragma omp simd
                for (int64_t c = 0; c < columns; ++c) wide[c] = widen(from[c]);
            }
            const float* sum = total.get();
            embeddings.sum(t, total.get());
            norm_backward([wide](int64_t c) { return wide[c]; }, [sum](int64_t c) { return sum[c]; }, stats[t],
                          scale.get(), columns, unit.get(), out, weight_sum, bias_sum);
            return out;
        };
    };
    auto read_again = [&](int64_t) { return [&](int64_t t) { return stored.get() + t * columns; }; };
    sum_by_row(embeddings.rows[0], tokens, grad_tables[0], table_rows[0], columns, worked_out);
    for (int64_t i = 1; i < embeddings.num_tables; ++i)
        sum_by_row(embeddings.rows[i], tokens, grad_tables[i], table_rows[i], columns, read_again);
    add_pieces(weight_sums, pieces, columns, grad_weight);
    add_pieces(bias_sums, pieces, columns, grad_bias);
}

template <class T>
void forward(const void* const* tables, const int64_t* const* rows, const void* weight, const void* bias,
             const int64_t* keys, void* out, Stats* stats, int64_t num_tables, int64_t tokens, int64_t columns,
             double epsilon, double probability) {
    embed<T>({(const T* const*)tables, rows, num_tables, columns}, (const T*)weight, (const T*)bias, keys, (T*)out,
             stats, tokens, float(epsilon), probability);
}

template <class T>
void backward(const void* grad, const void* const* tables, const int64_t* const* rows, const Stats* stats,
              const void* weight, const int64_t* keys, float* const* grad_tables, const int64_t* table_rows,
              float* grad_weight, float* grad_bias, int64_t num_tables, int64_t tokens, int64_t columns,
              double probability) {
    pull_back<T>({(const T* const*)tables, rows, num_tables, columns}, (const T*)grad, stats, (const T*)weight, keys,
                 grad_tables, table_rows, grad_weight, grad_bias, tokens, probability);
}

}  // namespace

// `table_rows` holds the number of rows of each table. Writes the number of the first table that lacks a token's row to
// `outside`, and does nothing else then; or -1.
KERNEL void oarlock_embed_norm_forward(const void* const* tables, const int64_t* const* rows, const void* weight,
                                       const void* bias, const int64_t* keys, void* out, Stats* stats,
                                       const int64_t* table_rows, int64_t* outside, int64_t num_tables, int64_t tokens,
                                       int64_t columns, double epsilon, double dropout, int64_t wide) {
    for (int64_t i = 0; i < num_tables; ++i)
        if (any_outside(rows[i], tokens, table_rows[i])) {
            *outside = i;
            return;
        }
    *outside = -1;
    (wide ? forward<float> : forward<bf16>)(tables, rows, weight, bias, keys, out, stats, num_tables, tokens, columns,
                                            epsilon, dropout);
}

KERNEL void oarlock_embed_norm_backward(const void* grad, const void* const* tables, const int64_t* const* rows,
                                        const Stats* stats, const void* weight, const int64_t* keys,
                                        float* const* grad_tables, const int64_t* table_rows, float* grad_weight,
                                        float* grad_bias, int64_t num_tables, int64_t tokens, int64_t columns,
                                        double dropout, int64_t wide) {
    (wide ? backward<float> : backward<bf16>)(grad, tables, rows, stats, weight, keys, grad_tables, table_rows,
                                              grad_weight, grad_bias, num_tables, tokens, columns, dropout);
}
