// Causal attention for narrow heads on a CPU, forward and backward; attention.py compiles and calls it.
//
// PyTorch's kernel multiplies small matrices, which is slow for heads of 4 to 64 numbers: the published models have 16
// such heads. Here attention is seven small products of one form, product() below, on tiles that stay in the first-level
// cache. D, the width of a head, is a compile-time constant (-DHEAD_WIDTH=16), so that the compiler unrolls them.
//
// E, float or bf16, is the type of the tensors; everything is computed in float32. lse (B, H, T) is the logarithm of each
// query's sum of exponentials, kept for the backward pass.
//
// Forward, the lanes hold queries: softmax then needs no sums across lanes, and is updated tile by tile of keys (Dao et
// al. 2022). Backward, they hold keys: the gradients of keys and values stay in the cache while all queries go by.
#include <algorithm>
#include <vector>

#include "simd.h"

constexpr int D = HEAD_WIDTH;
constexpr int ROWS = REGISTERS / 4, VECS = 2;  // sums of a product that stay in registers, next to its operands
constexpr int TILE = 32;                       // keys
constexpr int BLOCK = 16;                      // queries that share a tile, backward
constexpr int WIDE = VECS * W;                 // queries (forward) or keys (backward) side by side

// Rows of D numbers are processed D_ROWS at a time; where they lie in lanes, they are padded to whole vectors.
constexpr int largest_divisor(int n, int most) { return n % most ? largest_divisor(n, most / 2) : most; }
constexpr int D_ROWS = largest_divisor(D, ROWS);
constexpr int D_PADDED = (D + W - 1) / W * W, D_VECS = largest_divisor(D_PADDED / W, VECS);

struct Shape {
    long B, T, H;
    const int32_t *first_key;  // (B, T): the first key that each query attends to, never decreasing along T
};
template <typename E>
struct Heads {  // a tensor (B, T, H, D), D contiguous, with these strides
    E *data;
    long b, t, h;
    E *head(long i, long j) const { return data + i * b + j * h; }
};

// The first keys of sequence b, and copies of the last one, so that tiles may read `beyond` queries past T.
static std::vector<int32_t> first_keys(const Shape &n, long b, long beyond) {
    std::vector<int32_t> first(n.T + beyond);
    std::copy_n(n.first_key + b * n.T, n.T, first.begin());
    std::fill(first.begin() + n.T, first.end(), first[n.T - 1]);
    return first;
}

// out (M, N vectors) = a (M, n) @ b (n, N vectors), or += that. Rows of out and b, rows and columns of a have a stride.
template <int M, int N, bool ADD>
static inline void product(float *out, long out_row, const float *a, long a_row, long a_column, const float *b,
                           long b_row, long n) {
    vec total[M][N];
    for (int m = 0; m < M; m++)
        for (int c = 0; c < N; c++) total[m][c] = ADD ? load(out + m * out_row + c * W) : vec{};
    for (long i = 0; i < n; i++) {
        vec x[N];
        for (int c = 0; c < N; c++) x[c] = load(b + i * b_row + c * W);
        for (int m = 0; m < M; m++)
            for (int c = 0; c < N; c++) total[m][c] = fma(splat(a[m * a_row + i * a_column]), x[c], total[m][c]);
    }
    for (int m = 0; m < M; m++)
        for (int c = 0; c < N; c++) store(out + m * out_row + c * W, total[m][c]);
}

// Positions t0 to t1 of a head, copied to memory in which positions are `row` and a position's D numbers `column` apart,
// or back into the tensor. There the heads of a position lie side by side, so the rows of one head are too far apart for
// the hardware to prefetch.
constexpr int AHEAD = 16;
template <typename E>
static inline void read(float *to, long row, long column, const E *x, long t0, long t1, long stride) {
    for (long t = t0; t < t1; t++) {
        __builtin_prefetch(x + (t + AHEAD) * stride);
        for (int d = 0; d < D; d++) to[(t - t0) * row + d * column] = to_float(x[t * stride + d]);
    }
}
template <typename E>
static inline void write(E *x, long t0, long t1, long stride, const float *from, long row, long column) {
    for (long t = t0; t < t1; t++) {
        __builtin_prefetch(x + (t + AHEAD) * stride, 1);
        for (int d = 0; d < D; d++) store(x[t * stride + d], from[(t - t0) * row + d * column]);
    }
}

template <typename E>
static void forward(Shape n, float *lse, Heads<E> q, Heads<E> k, Heads<E> v, Heads<E> out) {
    const long padded = n.T + TILE;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const long b = task / n.H, h = task % n.H;
        const auto first = first_keys(n, b, WIDE);
        Buffer K(padded * D), V(padded * D);
        alignas(64) float Q[D * WIDE] = {}, weights[TILE * WIDE], sums[D * WIDE];  // sums: of weights x values
        read(K, D, 1, k.head(b, h), 0, n.T, k.t);
        read(V, D, 1, v.head(b, h), 0, n.T, v.t);
        for (long i = 0; i < n.T; i += WIDE) {
            read(Q, 1, WIDE, q.head(b, h), i, std::min(i + WIDE, n.T), q.t);
            memset(sums, 0, sizeof sums);
            vec largest[VECS], total[VECS] = {};
            for (int c = 0; c < VECS; c++) largest[c] = splat(-1e30f);
            const long begin = first[i] / ROWS * ROWS, end = std::min(i + WIDE, n.T);
            for (long j0 = begin; j0 < end; j0 += TILE) {
                const long n_keys = std::min(long(TILE), (end - j0 + ROWS - 1) / ROWS * ROWS);
                for (long j = 0; j < n_keys; j += ROWS)
                    product<ROWS, VECS, false>(weights + j * WIDE, WIDE, K + (j0 + j) * D, D, 1, Q, WIDE, D);
                const bool all_visible = j0 + n_keys - 1 <= i && j0 >= first[end - 1];
                for (int c = 0; c < VECS; c++) {
                    const ivec query = int32_t(i + c * W) + lanes(), first_key = load(&first[i + c * W]);
                    const auto visible = [&](long j) {
                        return (query >= int32_t(j0 + j)) & (first_key <= int32_t(j0 + j));
                    };
                    vec top = largest[c];
                    for (long j = 0; j < n_keys; j++) {
                        const vec logit = load(weights + j * WIDE + c * W);
                        top = larger(top, all_visible ? logit : (visible(j) ? logit : splat(-1e30f)));
                    }
                    const vec shrink = exp_vec(largest[c] - top);
                    for (int d = 0; d < D; d++) store(sums + d * WIDE + c * W, load(sums + d * WIDE + c * W) * shrink);
                    total[c] *= shrink;
                    largest[c] = top;
                    for (long j = 0; j < n_keys; j++) {
                        vec weight = exp_vec(load(weights + j * WIDE + c * W) - top);
                        if (!all_visible) weight = visible(j) ? weight : vec{};
                        total[c] += weight;
                        store(weights + j * WIDE + c * W, weight);
                    }
                }
                for (int d = 0; d < D; d += D_ROWS)
                    product<D_ROWS, VECS, true>(sums + d * WIDE, WIDE, V + j0 * D + d, 1, D, weights, WIDE, n_keys);
            }
            for (long t = i; t < end; t++) {
                const int c = int(t - i) / W, l = int(t - i) % W;
                lse[task * n.T + t] = largest[c][l] + std::log(total[c][l]);
                E *row = out.head(b, h) + t * out.t;
                for (int d = 0; d < D; d++) store(row[d], sums[d * WIDE + t - i] / total[c][l]);
            }
        }
    }
}

template <typename E>
static void backward(Shape n, const float *lse, Heads<E> q, Heads<E> k, Heads<E> v, Heads<E> out, Heads<E> dout,
                     Heads<E> dq, Heads<E> dk, Heads<E> dv) {
    const long padded = n.T + TILE + BLOCK;  // the queries beyond T have dout = 0 and so add nothing to any gradient
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const long b = task / n.H, h = task % n.H;
        const auto first = first_keys(n, b, BLOCK);
        Buffer Q(padded * D), dO(padded * D), dQ(padded * D_PADDED), log_sum(padded), delta(padded);
        alignas(64) float K[TILE * D_PADDED] = {}, K_columns[D * TILE] = {}, V_columns[D * TILE] = {};
        alignas(64) float dK[D * TILE], dV[D * TILE];  // in columns as well
        alignas(64) float weights[BLOCK * TILE], dlogits[BLOCK * TILE];
        read(Q, D, 1, q.head(b, h), 0, n.T, q.t);
        read(dO, D, 1, dout.head(b, h), 0, n.T, dout.t);
        const E *out_head = out.head(b, h);
        for (long t = 0; t < n.T; t++) {
            log_sum[t] = lse[task * n.T + t];
            for (int d = 0; d < D; d++) delta[t] += to_float(out_head[t * out.t + d]) * dO[t * D + d];
        }
        for (long j0 = 0; j0 < n.T; j0 += TILE) {
            const long j1 = std::min(j0 + TILE, n.T);
            read(K, D_PADDED, 1, k.head(b, h), j0, j1, k.t);
            read(K_columns, 1, TILE, k.head(b, h), j0, j1, k.t);
            read(V_columns, 1, TILE, v.head(b, h), j0, j1, v.t);
            memset(dK, 0, sizeof dK);
            memset(dV, 0, sizeof dV);
            const long last = std::upper_bound(first.begin(), first.begin() + n.T, j1 - 1) - first.begin();
            for (long i = j0 / BLOCK * BLOCK; i < last; i += BLOCK) {
                // The part of the tile that queries i to i + BLOCK see.
                const long begin = std::max(0L, first[i] - j0) / WIDE * WIDE;
                const long end = std::min(long(TILE), (i + BLOCK - j0 + WIDE - 1) / WIDE * WIDE);
                for (long j = begin; j < end; j += WIDE)
                    for (long r = 0; r < BLOCK; r += ROWS) {
                        const long row = i + r, tile = r * TILE + j;
                        product<ROWS, VECS, false>(weights + tile, TILE, Q + row * D, D, 1, K_columns + j, TILE, D);
                        product<ROWS, VECS, false>(dlogits + tile, TILE, dO + row * D, D, 1, V_columns + j, TILE, D);
                    }
                const bool all_visible = j0 + end - 1 <= i && j0 + begin >= first[i + BLOCK - 1];
                for (long r = 0; r < BLOCK; r++)
                    for (long j = begin; j < end; j += W) {
                        float *logit = weights + r * TILE + j, *dlogit = dlogits + r * TILE + j;
                        vec weight = exp_vec(load(logit) - log_sum[i + r]);
                        if (!all_visible) {
                            const ivec key = int32_t(j0 + j) + lanes();
                            const ivec visible = (key <= int32_t(i + r)) & (key >= first[i + r]);
                            weight = visible ? weight : vec{};
                        }
                        store(logit, weight);
                        store(dlogit, weight * (load(dlogit) - delta[i + r]));
                    }
                for (long j = begin; j < end; j += WIDE)
                    for (long d = 0; d < D; d += D_ROWS) {
                        const long tile = d * TILE + j, row = i * D + d;
                        product<D_ROWS, VECS, true>(dV + tile, TILE, dO + row, 1, D, weights + j, TILE, BLOCK);
                        product<D_ROWS, VECS, true>(dK + tile, TILE, Q + row, 1, D, dlogits + j, TILE, BLOCK);
                    }
                for (long r = 0; r < BLOCK; r += ROWS)
                    for (long d = 0; d < D_PADDED; d += D_VECS * W)
                        product<ROWS, D_VECS, true>(dQ + (i + r) * D_PADDED + d, D_PADDED, dlogits + r * TILE + begin, TILE,
                                                    1, K + begin * D_PADDED + d, D_PADDED, end - begin);
            }
            write(dk.head(b, h), j0, j1, dk.t, dK, 1, TILE);
            write(dv.head(b, h), j0, j1, dv.t, dV, 1, TILE);
        }
        write(dq.head(b, h), 0, n.T, dq.t, dQ, D_PADDED, 1);
    }
}

#define EXPORT(NAME, E)                                                                                 \
    extern "C" void forward_##NAME(long B, long T, long H, const int32_t *first_key, float *lse,        \
                                   const Heads<E> *x) {                                                 \
        forward(Shape{B, T, H, first_key}, lse, x[0], x[1], x[2], x[3]);                                \
    }                                                                                                   \
    extern "C" void backward_##NAME(long B, long T, long H, const int32_t *first_key, const float *lse, \
                                    const Heads<E> *x) {                                                \
        backward(Shape{B, T, H, first_key}, lse, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);       \
    }

EXPORT(float32, float)
EXPORT(bfloat16, bf16)
