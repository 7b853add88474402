// Causal attention for narrow heads on a CPU, forward and backward; attention.py compiles and calls it.
//
// PyTorch's kernel multiplies small matrices, which is slow for heads of 4 to 64 numbers: the published models have 16
// of them. Here keys and values of a head lie transposed, (D, T), so that one vector register holds 16 keys and the sum
// over D is a chain of multiply-adds. Four queries share each load. Softmax stays in float32 whatever the input is.
//
// Tensors: q, k, v, out and their gradients are (B, T, H, D) with D contiguous and the given strides; T beyond is padded
// to whole vectors. lse (B, H, T) is the logarithm of each query's sum of exponentials, kept for the backward pass.
#include "simd.h"

constexpr int R = 4;  // queries that share the loads of keys and values

static inline ivec visible(int j, int i, int window) {  // which of the keys j, j+1, … the query i may see
    ivec keys = j + LANES;
    return (keys <= i) & (keys > i - window);
}

struct Shape {
    long B, T, H, window;
};
struct Strides {
    long b, t, h;
};

struct Buffer {  // zeroed floats, aligned to a vec
    float *data;
    Buffer(size_t n) : data((float *)aligned_alloc(64, (n * 4 + 63) / 64 * 64)) { memset(data, 0, n * 4); }
    ~Buffer() { free(data); }
    operator float *() { return data; }
};

template <int D, typename E>
static void load_rows(float *rows, const E *x, long T, long stride) {  // -> (T, D)
    for (long t = 0; t < T; t++)
        for (int d = 0; d < D; d++) rows[t * D + d] = to_float(x[t * stride + d]);
}

template <int D, typename E>
static void load_transposed(float *columns, const E *x, long T, long stride, long P) {  // -> (D, P), P >= T
    for (long t = 0; t < T; t++)
        for (int d = 0; d < D; d++) columns[d * P + t] = to_float(x[t * stride + d]);
}

// dot[r] = sum over d of x[r][d] * columns[d][j..j+W]
template <int D>
static inline void dots(vec *dot, const float *x, const float *columns, long P, long j) {
    for (int r = 0; r < R; r++) dot[r] = vec{};
    for (int d = 0; d < D; d++) {
        vec column = *(const vec *)(columns + d * P + j);
        for (int r = 0; r < R; r++) dot[r] += x[r * D + d] * column;
    }
}

// out[r][d] = sum over the keys from j0 to j1 of weights[r][j] * columns[d][j]
template <int D>
static inline void weighted_sums(float *out, const float *weights, const float *columns, long P, long j0, long j1) {
    constexpr int C = 4;  // R * C accumulators stay in registers
    for (int d0 = 0; d0 < D; d0 += C) {
        vec acc[R][C] = {};
        for (long j = j0; j < j1; j += W)
            for (int c = 0; c < C; c++) {
                vec column = *(const vec *)(columns + (d0 + c) * P + j);
                for (int r = 0; r < R; r++) acc[r][c] += *(const vec *)(weights + r * P + j) * column;
            }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) out[r * D + d0 + c] = sum(acc[r][c]);
    }
}

// columns[d][j..j+W] += sum over r of weights[r][j..] * x[r][d]
template <int D>
static inline void add_outer(float *columns, const float *weights, const float *x, long P, long j0, long j1) {
    for (long j = j0; j < j1; j += W) {
        vec w[R];
        for (int r = 0; r < R; r++) w[r] = *(const vec *)(weights + r * P + j);
        for (int d = 0; d < D; d++) {
            vec *column = (vec *)(columns + d * P + j);
            vec total = *column;
            for (int r = 0; r < R; r++) total += w[r] * x[r * D + d];
            *column = total;
        }
    }
}

template <int D, typename E>
static void forward(const E *q, const E *k, const E *v, E *out, float *lse, Shape n, Strides in, Strides o) {
    long P = (n.T + W - 1) / W * W;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        long b = task / n.H, h = task % n.H, from = b * in.b + h * in.h;
        Buffer Q(P * D), K(D * P), V(D * P), weights(R * P);
        float result[R * D];
        load_rows<D>(Q, q + from, n.T, in.t);
        load_transposed<D>(K, k + from, n.T, in.t, P);
        load_transposed<D>(V, v + from, n.T, in.t, P);
        for (long i = 0; i < n.T; i += R) {
            long j0 = i >= n.window ? (i - n.window + 1) / W * W : 0, j1 = (i + R + W - 1) / W * W;
            vec largest[R], total[R] = {}, logits[R];
            for (int r = 0; r < R; r++) largest[r] = splat(-INFINITY);
            for (long j = j0; j < j1; j += W) {
                dots<D>(logits, Q + i * D, K, P, j);
                for (int r = 0; r < R; r++) {
                    logits[r] = visible(j, i + r, n.window) ? logits[r] : splat(-INFINITY);
                    largest[r] = largest[r] > logits[r] ? largest[r] : logits[r];
                    *(vec *)(weights + r * P + j) = logits[r];
                }
            }
            float top[R];
            for (int r = 0; r < R; r++) top[r] = largest_of(largest[r]);
            for (long j = j0; j < j1; j += W)
                for (int r = 0; r < R; r++) {
                    vec *weight = (vec *)(weights + r * P + j);
                    *weight = visible(j, i + r, n.window) ? exp_vec(*weight - top[r]) : vec{};
                    total[r] += *weight;
                }
            weighted_sums<D>(result, weights, V, P, j0, j1);
            for (int r = 0; r < R && i + r < n.T; r++) {
                float all = sum(total[r]);
                lse[task * n.T + i + r] = top[r] + std::log(all);
                E *row = out + b * o.b + h * o.h + (i + r) * o.t;
                for (int d = 0; d < D; d++) store(row[d], result[r * D + d] / all);
            }
        }
    }
}

template <int D, typename E>
static void backward(const E *q, const E *k, const E *v, const E *out, const E *dout, const float *lse, E *dq, E *dk,
                     E *dv, Shape n, Strides in, Strides o, Strides grad) {
    long P = (n.T + W - 1) / W * W;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        long b = task / n.H, h = task % n.H, from = b * in.b + h * in.h, at = b * o.b + h * o.h;
        long to = b * grad.b + h * grad.h;
        // Padding rows have dout = 0 and so add nothing to any gradient.
        Buffer Q(P * D), K(D * P), V(D * P), O(P * D), dO(P * D), dK(D * P), dV(D * P), weights(R * P), dlogits(R * P);
        float result[R * D];
        load_rows<D>(Q, q + from, n.T, in.t);
        load_transposed<D>(K, k + from, n.T, in.t, P);
        load_transposed<D>(V, v + from, n.T, in.t, P);
        load_rows<D>(O, out + at, n.T, o.t);
        load_rows<D>(dO, dout + at, n.T, o.t);
        for (long i = 0; i < n.T; i += R) {
            long j0 = i >= n.window ? (i - n.window + 1) / W * W : 0, j1 = (i + R + W - 1) / W * W;
            float delta[R] = {}, log_sum[R] = {};
            for (int r = 0; r < R && i + r < n.T; r++) {
                log_sum[r] = lse[task * n.T + i + r];
                for (int d = 0; d < D; d++) delta[r] += O[(i + r) * D + d] * dO[(i + r) * D + d];
            }
            for (long j = j0; j < j1; j += W) {
                vec logits[R], dweights[R];
                dots<D>(logits, Q + i * D, K, P, j);
                dots<D>(dweights, dO + i * D, V, P, j);
                for (int r = 0; r < R; r++) {
                    vec weight = visible(j, i + r, n.window) ? exp_vec(logits[r] - log_sum[r]) : vec{};
                    *(vec *)(weights + r * P + j) = weight;
                    *(vec *)(dlogits + r * P + j) = weight * (dweights[r] - delta[r]);
                }
            }
            weighted_sums<D>(result, dlogits, K, P, j0, j1);
            for (int r = 0; r < R && i + r < n.T; r++)
                for (int d = 0; d < D; d++) store(dq[to + (i + r) * grad.t + d], result[r * D + d]);
            add_outer<D>(dK, dlogits, Q + i * D, P, j0, j1);
            add_outer<D>(dV, weights, dO + i * D, P, j0, j1);
        }
        for (long t = 0; t < n.T; t++)
            for (int d = 0; d < D; d++) {
                store(dk[to + t * grad.t + d], dK[d * P + t]);
                store(dv[to + t * grad.t + d], dV[d * P + t]);
            }
    }
}

#define FOR_EACH_WIDTH(CALL) \
    switch (D) {             \
        case 4: CALL(4);     \
        case 8: CALL(8);     \
        case 16: CALL(16);   \
        case 32: CALL(32);   \
        case 64: CALL(64);   \
    }                        \
    return 1;

#define EXPORT(NAME, E)                                                                                              \
    extern "C" int forward_##NAME(long D, const E *q, const E *k, const E *v, E *out, float *lse, Shape n,           \
                                  Strides in, Strides o) {                                                           \
        FOR_EACH_WIDTH(FORWARD)                                                                                      \
    }                                                                                                                \
    extern "C" int backward_##NAME(long D, const E *q, const E *k, const E *v, const E *out, const E *dout,          \
                                   const float *lse, E *dq, E *dk, E *dv, Shape n, Strides in, Strides o,            \
                                   Strides grad) {                                                                   \
        FOR_EACH_WIDTH(BACKWARD)                                                                                     \
    }
#define FORWARD(D) forward<D>(q, k, v, out, lse, n, in, o); return 0
#define BACKWARD(D) backward<D>(q, k, v, out, dout, lse, dq, dk, dv, n, in, o, grad); return 0

EXPORT(float32, float)
EXPORT(bfloat16, bf16)
