// Causal attention for narrow heads on a CPU, forward and backward; attention.py compiles and calls it.
//
// PyTorch's kernel multiplies small matrices, which is slow for heads of 4 to 64 numbers: the published models have 16
// of them. Here the keys of a head lie transposed, so that one vector register holds 16 keys and the sum over D is a
// chain of multiply-adds; R queries share each load. E is float or bf16, the type of what is multiplied: the input's,
// and that of the attention weights and their gradients. Softmax and all sums are float32.
//
// Tensors: q, k, v, out and their gradients are (B, T, H, D) with D contiguous and the given strides; T beyond is padded
// with zeros to P. lse (B, H, T) is the logarithm of each query's sum of exponentials, kept for the backward pass.
//
// Layouts of a head, with G = 1 number of E in 4 bytes, or 2:
//   rows     (P, D)         as it comes
//   columns  (D, P)         transposed: G x 16 positions in a vector, to sum over positions
//   grouped  (D/G, P, G)    transposed: 16 positions in a vector, G of their numbers each, to sum over D
//   paired   (P/G, D, G)    G positions at a time, to sum over queries
#include "simd.h"

constexpr int R = 8;  // queries that share the loads of keys and values

struct Shape {
    long B, T, H, window;
};
struct Strides {
    long b, t, h;
};

template <typename N>
struct Buffer {  // zeroed, aligned to a vec
    N *data;
    Buffer(size_t n) : data((N *)aligned_alloc(64, (n * sizeof(N) + 63) / 64 * 64)) { memset((void *)data, 0, n * sizeof(N)); }
    ~Buffer() { free(data); }
    operator N *() { return data; }
};

// Copies T rows of D to wherever place(t, d) says.
template <int D, typename E, typename Place>
static inline void spread(E *to, const E *x, long T, long stride, Place place) {
    for (long t = 0; t < T; t++)
        for (int d = 0; d < D; d++) to[place(t, d)] = x[t * stride + d];
}

// Which keys the queries i to i + R meet: vectors of 16 from `begin` (whose weights up to whole vectors of bf16 are
// computed, as zeros) to `end`, and which of them all the queries see whole.
struct Visible {
    long i, window;
    long begin() const { return i >= window ? (i - window + 1) / (2 * W) * (2 * W) : 0; }
    long end() const { return (i + R + W - 1) / W * W; }
    bool whole(long j) const { return j + W - 1 <= i && j > i + R - 1 - window; }
    ivec lanes(long j, int r) const {  // which of the keys j to j + 16 the query i + r sees
        ivec key = int32_t(j) + LANES;
        return (key <= int32_t(i + r)) & (key > int32_t(i + r - window));
    }
};

// dot[r] = sum over d of rows[r][d] * grouped[d][j..j+16]
template <int D, typename E>
static inline void dots(vec *dot, const E *rows, const E *grouped, long P, long j) {
    for (int r = 0; r < R; r++) dot[r] = vec{};
    for (int d = 0; d < D; d += G<E>)
        for (int r = 0; r < R; r++) dot[r] = multiply_add(dot[r], rows + r * D + d, grouped + d * P + j * G<E>);
}

// out[r][d] = sum over the keys from j0 to j1 of weights[r][j] * columns[d][j]; weights are 0 up to whole vectors
template <int D, typename E>
static inline void weighted_sums(float *out, const E *weights, const E *columns, long P, long j0, long j1) {
    constexpr int C = 2, S = W * G<E>;  // R * C sums stay in registers
    for (int d0 = 0; d0 < D; d0 += C) {
        vec total[R][C] = {};
        for (long j = j0; j < j1; j += S)
            for (int c = 0; c < C; c++)
                for (int r = 0; r < R; r++)
                    total[r][c] = multiply_add_lanes(total[r][c], weights + r * P + j, columns + (d0 + c) * P + j);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) out[r * D + d0 + c] = sum(total[r][c]);
    }
}

// sums[d][j..j+16] += sum over r of weights[r][j..] * x[r][d]; weights and x paired
template <int D, typename E>
static inline void add_outer(float *sums, const E *weights, const E *x, long P, long j0, long j1) {
    for (long j = j0; j < j1; j += W)
        for (int d = 0; d < D; d++) {
            vec total = load(sums + d * P + j);
            for (int r = 0; r < R; r += G<E>)
                total = multiply_add(total, x + r * D + d * G<E>, weights + r * P + j * G<E>);
            store(sums + d * P + j, total);
        }
}

// The weights of R queries for 16 keys, paired.
static inline void store_paired(float *to, const vec *x, long P) {
    for (int r = 0; r < R; r++) store(to + r * P, x[r]);
}
static inline void store_paired(bf16 *to, const vec *x, long P) {
    for (int r = 0; r < R; r += 2) {
        ivec pair = ((rounded(x[r]) >> 16) & 0xffff) | (rounded(x[r + 1]) & int32_t(0xffff0000));
        memcpy(to + r * P, &pair, sizeof pair);
    }
}

template <int D, typename E>
static void forward(const E *q, const E *k, const E *v, E *out, float *lse, Shape n, Strides in, Strides o) {
    const long P = (n.T + 31) / 32 * 32;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const long b = task / n.H, h = task % n.H, from = b * in.b + h * in.h;
        Buffer<E> Q(P * D), K(P * D), V(P * D), weights(R * P);
        Buffer<float> logits(R * P);
        float result[R * D];
        spread<D>(&Q[0], q + from, n.T, in.t, [](long t, int d) { return t * D + d; });
        spread<D>(&K[0], k + from, n.T, in.t, [=](long t, int d) { return (d / G<E> * P + t) * G<E> + d % G<E>; });
        spread<D>(&V[0], v + from, n.T, in.t, [=](long t, int d) { return d * P + t; });
        for (long i = 0; i < n.T; i += R) {
            const Visible visible = {i, n.window};
            const long j0 = visible.begin(), j1 = visible.end();
            vec largest[R], total[R] = {}, dot[R];
            for (int r = 0; r < R; r++) largest[r] = splat(-1e30f);
            for (long j = j0; j < j1; j += W) {
                dots<D>(dot, Q + i * D, &K[0], P, j);
                const bool whole = visible.whole(j);
                for (int r = 0; r < R; r++) {
                    vec x = whole ? dot[r] : visible.lanes(j, r) ? dot[r] : splat(-INFINITY);
                    largest[r] = largest[r] > x ? largest[r] : x;
                    store(logits + r * P + j, x);
                }
            }
            float top[R];
            for (int r = 0; r < R; r++) top[r] = largest_of(largest[r]);
            for (long j = j0; j < j1; j += W) {
                const bool whole = visible.whole(j);
                for (int r = 0; r < R; r++) {
                    vec weight = exp_vec(load(logits + r * P + j) - top[r]);
                    if (!whole) weight = visible.lanes(j, r) ? weight : vec{};
                    total[r] += weight;
                    store(weights + r * P + j, weight);
                }
            }
            weighted_sums<D>(result, &weights[0], &V[0], P, j0, j1);
            for (int r = 0; r < R && i + r < n.T; r++) {
                const float all = sum(total[r]);
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
    const long P = (n.T + 31) / 32 * 32;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const long b = task / n.H, h = task % n.H, from = b * in.b + h * in.h, at = b * o.b + h * o.h;
        const long to = b * grad.b + h * grad.h;
        // Padding rows have dout = 0 and so add nothing to any gradient.
        Buffer<E> Q(P * D), K(P * D), V(P * D), dO(P * D), Q_paired(P * D), dO_paired(P * D), K_columns(P * D);
        Buffer<E> paired(R * P), dlogits(R * P), dlogits_paired(R * P);
        Buffer<float> dK(P * D), dV(P * D);
        float result[R * D];
        const auto rows = [](long t, int d) { return t * D + d; };
        const auto grouped = [=](long t, int d) { return (d / G<E> * P + t) * G<E> + d % G<E>; };
        const auto in_pairs = [](long t, int d) { return t / G<E> * G<E> * D + d * G<E> + t % G<E>; };
        spread<D>(&Q[0], q + from, n.T, in.t, rows);
        spread<D>(&Q_paired[0], q + from, n.T, in.t, in_pairs);
        spread<D>(&K[0], k + from, n.T, in.t, grouped);
        spread<D>(&K_columns[0], k + from, n.T, in.t, [=](long t, int d) { return d * P + t; });
        spread<D>(&V[0], v + from, n.T, in.t, grouped);
        spread<D>(&dO[0], dout + at, n.T, o.t, rows);
        spread<D>(&dO_paired[0], dout + at, n.T, o.t, in_pairs);
        for (long i = 0; i < n.T; i += R) {
            const Visible visible = {i, n.window};
            const long j0 = visible.begin(), j1 = visible.end();
            float delta[R] = {}, log_sum[R] = {};
            for (int r = 0; r < R && i + r < n.T; r++) {
                log_sum[r] = lse[task * n.T + i + r];
                for (int d = 0; d < D; d++) delta[r] += to_float(out[at + (i + r) * o.t + d]) * to_float(dO[(i + r) * D + d]);
            }
            for (long j = j0; j < j1; j += W) {
                vec weight[R], dweight[R], dlogit[R];
                dots<D>(weight, Q + i * D, &K[0], P, j);
                dots<D>(dweight, dO + i * D, &V[0], P, j);
                const bool whole = visible.whole(j);
                for (int r = 0; r < R; r++) {
                    weight[r] = exp_vec(weight[r] - log_sum[r]);
                    if (!whole) weight[r] = visible.lanes(j, r) ? weight[r] : vec{};
                    dlogit[r] = weight[r] * (dweight[r] - delta[r]);
                    store(dlogits + r * P + j, dlogit[r]);
                }
                store_paired(paired + j * G<E>, weight, P);
                store_paired(dlogits_paired + j * G<E>, dlogit, P);
            }
            weighted_sums<D>(result, &dlogits[0], &K_columns[0], P, j0, j1);
            for (int r = 0; r < R && i + r < n.T; r++)
                for (int d = 0; d < D; d++) store(dq[to + (i + r) * grad.t + d], result[r * D + d]);
            add_outer<D>(&dK[0], &dlogits_paired[0], Q_paired + i * D, P, j0, j1);
            add_outer<D>(&dV[0], &paired[0], dO_paired + i * D, P, j0, j1);
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
