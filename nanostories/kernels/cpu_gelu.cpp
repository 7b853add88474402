// GELU, tanh approximation, and its gradient; gelu.py compiles and calls it.
#include "simd.h"

// Calls visit(i) for numbers i to i + W of n, n at least W; the last ones may be visited twice.
template <typename Visit>
static inline void for_each_vec(long n, Visit visit) {
#pragma omp parallel for schedule(static)
    for (long i = 0; i < n; i += W) visit(i + W <= n ? i : n - W);
}

template <typename E>
static void gelu(const E *x, E *y, long n) {
    for_each_vec(n, [=](long i) {
        const vec a = load(x + i);
        store(y + i, a * gelu_gate(a));
    });
}

template <typename E>
static void gelu_gradient(const E *x, const E *dy, E *dx, long n) {
    for_each_vec(n, [=](long i) {
        const vec a = load(x + i), gate = gelu_gate(a);
        const vec gate_gradient = gate * (1 - gate) * GELU_SLOPE * (1 + 3 * GELU_CUBIC * a * a);
        store(dx + i, load(dy + i) * fma(a, gate_gradient, gate));
    });
}

#define EXPORT(NAME, E)                                                                   \
    extern "C" void gelu_##NAME(const E *x, E *y, long n) { gelu(x, y, n); }              \
    extern "C" void gelu_gradient_##NAME(const E *x, const E *dy, E *dx, long n) {        \
        gelu_gradient(x, dy, dx, n);                                                      \
    }

EXPORT(float32, float)
EXPORT(bfloat16, bf16)
