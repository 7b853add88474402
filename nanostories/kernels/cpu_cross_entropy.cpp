// Cross-entropy of rows of logits, which its gradient overwrites; cross_entropy.py compiles and calls it.
#include "simd.h"

// Calls visit(j, logits j to j + W) along a row of n; beyond its end they are minus infinity.
template <typename E, typename Visit>
static inline void each_vec(const E *row, long n, Visit visit) {
    long j = 0;
    for (; j + W <= n; j += W) visit(j, load(row + j));
    if (j < n) {
        alignas(64) float tail[W];
        for (int l = 0; l < W; l++) tail[l] = j + l < n ? to_float(row[j + l]) : -INFINITY;
        visit(j, load(tail));
    }
}

// logits (n_rows, n) -> softmax minus one at the target; losses (n_rows) in nats. A target below 0 does not count.
template <typename E>
static void cross_entropy(E *logits, const int64_t *targets, float *losses, long n_rows, long n) {
#pragma omp parallel
    {
        const long padded = (n + W - 1) / W * W;
        Buffer weights(padded);
#pragma omp for schedule(static)
        for (long r = 0; r < n_rows; r++) {
            E *row = logits + r * n;
            if (targets[r] < 0) {
                losses[r] = 0;
                memset((void *)row, 0, n * sizeof(E));
                continue;
            }
            const float target = to_float(row[targets[r]]);
            vec largest = splat(-INFINITY), total = {};
            each_vec(row, n, [&](long, vec x) { largest = larger(largest, x); });
            const float top = horizontal_max(largest);
            each_vec(row, n, [&](long j, vec x) {
                vec e = exp_vec(x - top);
                store(weights + j, e);
                total += e;  // the padding adds e^-87 each, nothing next to the largest, which is 1
            });
            const float all = sum(total);
            losses[r] = top + std::log(all) - target;
            weights[targets[r]] -= all;
            long j = 0;
            for (; j + W <= n; j += W) store(row + j, load(weights + j) * (1 / all));
            for (; j < n; j++) store(row[j], weights[j] / all);
        }
    }
}

extern "C" {
void cross_entropy_float32(float *logits, const int64_t *targets, float *losses, long n_rows, long n) {
    cross_entropy(logits, targets, losses, n_rows, n);
}
void cross_entropy_bfloat16(bf16 *logits, const int64_t *targets, float *losses, long n_rows, long n) {
    cross_entropy(logits, targets, losses, n_rows, n);
}
}
