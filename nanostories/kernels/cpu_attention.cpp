// Causal attention for narrow heads on a CPU, forward and backward; attention.py compiles and calls it.
//
// PyTorch's kernel multiplies small matrices, which is slow for heads of 4 to 64 numbers: the published models have 16
// such heads. Here attention is seven small products of one form, product() below, on tiles that stay in the
// first-level cache. The width of a head and the type of the tensors are compile-time constants (-DHEAD_WIDTH=16
// -DELEMENT=bf16), so that the compiler unrolls the loops.
//
// Sums, softmax and its gradient are float32; so is what is multiplied, or bfloat16, where AMX multiplies tiles. lse
// (B, H, T) is the logarithm of each query's sum of exponentials, kept for the backward pass.
//
// Forward, the lanes hold queries: softmax then needs no sums across lanes, and is updated tile by tile of keys (Dao et
// al. 2022). Backward, they hold keys: the gradients of keys and values stay in the cache while all queries go by.
//
// With dropout each weight is dropped or scaled as a hash of its query and key says, so that nothing has to be kept for
// the backward pass.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "simd.h"

typedef ELEMENT E;  // of the tensors: float or bf16
#ifdef __AMX_BF16__
constexpr bool AMX = std::is_same_v<E, bf16>;
#else
constexpr bool AMX = false;
#endif
typedef std::conditional_t<AMX, bf16, float> X;  // of what is multiplied
constexpr int PAIR = AMX ? 2 : 1;                // AMX takes the rows of a second factor in pairs: see product()

constexpr int WIDTH = HEAD_WIDTH, D = AMX ? (WIDTH + 15) / 16 * 16 : WIDTH;  // of a head, padded with zeros for AMX
constexpr int TILE = 32;                                                     // keys
constexpr int BLOCK = AMX ? 32 : 16;                                         // queries that share a tile, backward
constexpr int VECS = 2, WIDE = VECS * W;       // queries (forward) or keys (backward) side by side
constexpr int ROWS = AMX ? 16 : REGISTERS / 4;  // of a product: those of a tile, or sums that stay in registers

// Rows of D numbers are processed D_ROWS at a time; where they lie in lanes, they are padded to whole vectors.
constexpr int largest_divisor(int n, int most) { return n % most ? largest_divisor(n, most / 2) : most; }
constexpr int D_ROWS = largest_divisor(D, ROWS);
constexpr int D_PADDED = (D + W - 1) / W * W, D_VECS = largest_divisor(D_PADDED / W, VECS);

struct Shape {
    long B, T, H;
    const int32_t *first_key;  // (B, T): the first key that each query attends to, never decreasing along T
};
struct Heads {  // a tensor (B, T, H, WIDTH), the last contiguous, with these strides
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

// ---- Dropout ----
typedef uint32_t uvec __attribute__((vector_size(4 * W)));

template <typename U>
static inline U mixed(U x) {  // the last steps of MurmurHash3
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

struct Dropout {
    uint32_t seed;
    // A weight stays if its hash is not below. Hashes are compared as signed numbers, from -2^31 on, as AVX2 has no
    // comparison of unsigned ones.
    int32_t threshold;
    float scale;  // of weights that stay

    Dropout(long seed, long n_dropped)  // of 2^32 equally likely hashes
        : seed(uint32_t(seed)), threshold(int32_t(n_dropped - (1L << 31))),
          scale(float(1 / (1 - std::ldexp(double(n_dropped), -32)))) {}

    uint32_t head_seed(long head) const { return mixed(seed + uint32_t(head)); }

    // What W weights are multiplied by: each is dropped or scaled.
    vec factors(uint32_t head_seed, ivec query, ivec key) const {
        const uvec place = (uvec)query * 0x9e3779b9u + (uvec)key;  // queries lie far apart, in all bits
        const uvec hash = mixed(place ^ head_seed);
        return (ivec)hash >= threshold ? splat(scale) : vec{};
    }
};

// ---- Products ----
#ifdef __AMX_BF16__
// The registers of AMX for as long as this lives: 0 and 1 hold sums, 2 to 4 factors of 32 numbers a row, 5 to 7 of 16.
struct Tiles {
    Tiles() {
        struct {
            uint8_t palette = 1, reserved[15] = {};
            uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 32, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 8, 8};
        } configuration;
        __asm__ volatile("ldtilecfg %0" : : "m"(configuration));  // GCC 12's intrinsic says that it reads 8 bytes
    }
    ~Tiles() { _tile_release(); }
};

// product() of 16 rows, below; n is a multiple of 16.
template <int N, bool ADD>
static inline void tile_product(float *out, long out_row, const bf16 *a, long a_row, const bf16 *b, long b_row,
                                long n) {
    __asm__ volatile("" : : : "memory");  // nor does its _tile_loadd say that it reads memory
    _tile_zero(0);
    _tile_zero(1);
    if (ADD) _tile_loadd(0, out, out_row * 4);
    if (ADD && N > 1) _tile_loadd(1, out + 16, out_row * 4);
    long i = 0;
    for (; i + 32 <= n; i += 32) {
        _tile_loadd(2, a + i, a_row * 2);
        _tile_loadd(3, b + i / 2 * b_row, b_row * 2);
        _tile_dpbf16ps(0, 2, 3);
        if (N > 1) _tile_loadd(4, b + i / 2 * b_row + 32, b_row * 2);
        if (N > 1) _tile_dpbf16ps(1, 2, 4);
    }
    if (i < n) {
        _tile_loadd(5, a + i, a_row * 2);
        _tile_loadd(6, b + i / 2 * b_row, b_row * 2);
        _tile_dpbf16ps(0, 5, 6);
        if (N > 1) _tile_loadd(7, b + i / 2 * b_row + 32, b_row * 2);
        if (N > 1) _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, out, out_row * 4);
    if (N > 1) _tile_stored(1, out + 16, out_row * 4);
}
#else
struct Tiles {
    ~Tiles() {}
};
#endif

// out (M, N vectors) = a (M, n) @ b (n, N vectors), or += that. Rows of out and b, rows and columns of a have a stride.
// AMX wants the rows of a without gaps, and those of b in pairs: the two numbers of a column side by side.
template <int M, int N, bool ADD>
static inline void product(float *out, long out_row, const X *a, long a_row, long a_column, const X *b, long b_row,
                           long n) {
#ifdef __AMX_BF16__
    if constexpr (AMX) return tile_product<N, ADD>(out, out_row, (bf16 *)a, a_row, (bf16 *)b, b_row, n);
#endif
    vec total[M][N];
    for (int m = 0; m < M; m++)
        for (int c = 0; c < N; c++) total[m][c] = ADD ? load(out + m * out_row + c * W) : vec{};
    for (long i = 0; i < n; i++) {
        vec x[N];
        for (int c = 0; c < N; c++) x[c] = load(b + i * b_row + c * W);
        for (int m = 0; m < M; m++)
            for (int c = 0; c < N; c++)
                total[m][c] = fma(splat(to_float(a[m * a_row + i * a_column])), x[c], total[m][c]);
    }
    for (int m = 0; m < M; m++)
        for (int c = 0; c < N; c++) store(out + m * out_row + c * W, total[m][c]);
}

// ---- Copies ----
// Positions t0 to t1 of a head, copied to to[place(t - t0, d)], or back into the tensor. There the heads of a position
// lie side by side, so the rows of one head are too far apart for the hardware to prefetch.
constexpr int AHEAD = 16;
template <typename Place>
static inline void read(X *to, const E *x, long t0, long t1, long stride, Place place) {
    for (long t = t0; t < t1; t++) {
        __builtin_prefetch(x + (t + AHEAD) * stride);
        for (int d = 0; d < WIDTH; d++) store(to[place(t - t0, d)], x[t * stride + d]);
    }
}
template <typename Place>
static inline void write(E *x, long t0, long t1, long stride, const float *from, Place place) {
    for (long t = t0; t < t1; t++) {
        __builtin_prefetch(x + (t + AHEAD) * stride, 1);
        for (int d = 0; d < WIDTH; d++) store(x[t * stride + d], from[place(t - t0, d)]);
    }
}
// Places of number d of position t: in a matrix (T, D), in its transpose (D, N), in these as a product's second factor.
static long row(long t, long d) { return t * D + d; }
static long padded_row(long t, long d) { return t * D_PADDED + d; }
template <int N>
static long column(long t, long d) { return d * N + t; }
static long factor_row(long t, long d) { return (t / PAIR * D_PADDED + d) * PAIR + t % PAIR; }
template <int N>
static long factor_column(long t, long d) { return (d / PAIR * N + t) * PAIR + d % PAIR; }
// W columns of weights as a second factor: x[0], or the pairs of x[0] and x[1].
static inline void store_factor(X *to, const vec *x) {
#ifdef __AMX_BF16__
    if constexpr (AMX) {
        const auto order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        const auto both = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
        return _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, both));
    }
#endif
    store(to, x[0]);
}

template <bool DROPOUT>
static void forward(Shape n, Dropout dropout, float *lse, Heads q, Heads k, Heads v, Heads out) {
    const long padded = n.T + TILE;
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const Tiles tiles;
        const long b = task / n.H, h = task % n.H;
        const uint32_t head_seed = dropout.head_seed(task);
        const auto first = first_keys(n, b, WIDE);
        Buffer<X> K(padded * D), V_columns(D * padded);
        alignas(64) X Q[D * WIDE] = {}, weights[TILE * WIDE];
        alignas(64) float logits[TILE * WIDE], sums[D * WIDE];  // sums: of weights x values
        read(K, k.head(b, h), 0, n.T, k.t, row);
        read(V_columns, v.head(b, h), 0, n.T, v.t, [&](long t, long d) { return d * padded + t; });
        for (long i = 0; i < n.T; i += WIDE) {
            const long end = std::min(i + WIDE, n.T);
            read(Q, q.head(b, h), i, end, q.t, factor_column<WIDE>);
            memset(sums, 0, sizeof sums);
            vec largest[VECS], total[VECS] = {};
            ivec query[VECS], first_key[VECS];
            for (int c = 0; c < VECS; c++) {
                largest[c] = splat(-1e30f);
                query[c] = int32_t(i + c * W) + lanes();
                first_key[c] = load(&first[i + c * W]);
            }
            for (long j0 = first[i] / ROWS * ROWS; j0 < end; j0 += TILE) {
                const long n_keys = std::min(long(TILE), (end - j0 + ROWS - 1) / ROWS * ROWS);
                for (long j = 0; j < n_keys; j += ROWS)
                    product<ROWS, VECS, false>(logits + j * WIDE, WIDE, K + (j0 + j) * D, D, 1, Q, WIDE * PAIR, D);
                const bool all_visible = j0 + n_keys - 1 <= i && j0 >= first[end - 1];
                const auto visible = [&](long j, int c) {
                    const int32_t key = int32_t(j0 + j);
                    return (query[c] >= key) & (first_key[c] <= key);
                };
                vec top[VECS];
                for (int c = 0; c < VECS; c++) top[c] = largest[c];
                for (long j = 0; j < n_keys; j++)
                    for (int c = 0; c < VECS; c++) {
                        const vec logit = load(logits + j * WIDE + c * W);
                        top[c] = larger(top[c], all_visible ? logit : (visible(j, c) ? logit : splat(-1e30f)));
                    }
                for (int c = 0; c < VECS; c++) {
                    const vec shrink = exp_vec(largest[c] - top[c]);
                    for (int d = 0; d < D; d++) store(sums + d * WIDE + c * W, load(sums + d * WIDE + c * W) * shrink);
                    total[c] *= shrink;
                    largest[c] = top[c];
                }
                for (long j = 0; j < n_keys; j += PAIR)
                    for (int c = 0; c < VECS; c++) {
                        vec weight[PAIR];
                        for (int g = 0; g < PAIR; g++) {
                            weight[g] = exp_vec(load(logits + (j + g) * WIDE + c * W) - top[c]);
                            if (!all_visible) weight[g] = visible(j + g, c) ? weight[g] : vec{};
                            total[c] += weight[g];
                            const ivec key = int32_t(j0 + j + g) - ivec{};
                            if (DROPOUT) weight[g] *= dropout.factors(head_seed, query[c], key);
                        }
                        store_factor(weights + j * WIDE + c * W * PAIR, weight);
                    }
                for (int d = 0; d < D; d += D_ROWS)
                    product<D_ROWS, VECS, true>(sums + d * WIDE, WIDE, V_columns + d * padded + j0, padded, 1, weights,
                                            WIDE * PAIR, n_keys);
            }
            for (int c = 0; c < VECS; c++)
                for (int d = 0; d < D; d++) store(sums + d * WIDE + c * W, load(sums + d * WIDE + c * W) / total[c]);
            write(out.head(b, h), i, end, out.t, sums, column<WIDE>);
            for (long t = i; t < end; t++) {
                const int c = int(t - i) / W, l = int(t - i) % W;
                lse[task * n.T + t] = largest[c][l] + std::log(total[c][l]);
            }
        }
    }
}

template <bool DROPOUT>
static void backward(Shape n, Dropout dropout, const float *lse, Heads q, Heads k, Heads v, Heads out, Heads dout,
                     Heads dq, Heads dk, Heads dv) {
    const long padded = n.T + TILE + BLOCK;  // the queries beyond T have dout = 0 and so add nothing to any gradient
#pragma omp parallel for schedule(static)
    for (long task = 0; task < n.B * n.H; task++) {
        const Tiles tiles;
        const long b = task / n.H, h = task % n.H;
        const uint32_t head_seed = dropout.head_seed(task);
        const auto first = first_keys(n, b, BLOCK);
        Buffer<X> Q(padded * D), dO(padded * D);
        // AMX wants the rows of a first factor without gaps, and so copies of their transpose.
        const long row_T = AMX ? padded : 1, column_T = AMX ? 1 : D;
        Buffer<X> Q_columns(AMX * padded * D), dO_columns(AMX * padded * D);
        X *Q_T = AMX ? Q_columns : Q, *dO_T = AMX ? dO_columns : dO;
        Buffer dQ(padded * D_PADDED), log_sum(padded), delta(padded);
        alignas(64) X K[TILE * D_PADDED] = {}, K_columns[D * TILE] = {}, V_columns[D * TILE] = {};
        alignas(64) float dK[D * TILE], dV[D * TILE];  // in columns as well
        alignas(64) float logits[BLOCK * TILE], dweights[BLOCK * TILE];
        alignas(64) X weights[BLOCK * TILE], dlogits[BLOCK * TILE], unpaired[BLOCK * TILE];
        X *dlogit_rows = AMX ? unpaired : dlogits;  // as a first factor; without pairs both lie alike
        const auto transposed = [&](long t, long d) { return d * row_T + t * column_T; };
        read(Q, q.head(b, h), 0, n.T, q.t, row);
        if (AMX) read(Q_T, q.head(b, h), 0, n.T, q.t, transposed);
        read(dO, dout.head(b, h), 0, n.T, dout.t, row);
        if (AMX) read(dO_T, dout.head(b, h), 0, n.T, dout.t, transposed);
        for (long t = 0; t < n.T; t++) {
            const E *x = out.head(b, h) + t * out.t, *dx = dout.head(b, h) + t * dout.t;
            __builtin_prefetch(x + AHEAD * out.t);
            alignas(64) float products[D_PADDED] = {};
            for (int d = 0; d < WIDTH; d++) products[d] = to_float(x[d]) * to_float(dx[d]);
            vec total = {};
            for (int d = 0; d < D_PADDED; d += W) total += load(products + d);
            delta[t] = sum(total);
            log_sum[t] = lse[task * n.T + t];
        }
        for (long j0 = 0; j0 < n.T; j0 += TILE) {
            const long j1 = std::min(j0 + TILE, n.T);
            read(K, k.head(b, h), j0, j1, k.t, factor_row);
            read(K_columns, k.head(b, h), j0, j1, k.t, factor_column<TILE>);
            read(V_columns, v.head(b, h), j0, j1, v.t, factor_column<TILE>);
            memset(dK, 0, sizeof dK);
            memset(dV, 0, sizeof dV);
            const long last = std::upper_bound(first.begin(), first.begin() + n.T, j1 - 1) - first.begin();
            for (long i = j0 / BLOCK * BLOCK; i < last; i += BLOCK) {
                // The part of the tile that queries i to i + BLOCK see.
                const long begin = std::max(0L, first[i] - j0) / WIDE * WIDE;
                const long end = std::min(long(TILE), (i + BLOCK - j0 + WIDE - 1) / WIDE * WIDE);
                for (long j = begin; j < end; j += WIDE)
                    for (long r = 0; r < BLOCK; r += ROWS) {
                        const X *Q_rows = Q + (i + r) * D, *dO_rows = dO + (i + r) * D;
                        const X *K_part = K_columns + j * PAIR, *V_part = V_columns + j * PAIR;
                        const long to = r * TILE + j;
                        product<ROWS, VECS, false>(logits + to, TILE, Q_rows, D, 1, K_part, TILE * PAIR, D);
                        product<ROWS, VECS, false>(dweights + to, TILE, dO_rows, D, 1, V_part, TILE * PAIR, D);
                    }
                const bool all_visible = j0 + end - 1 <= i && j0 + begin >= first[i + BLOCK - 1];
                for (long r = 0; r < BLOCK; r += PAIR)
                    for (long j = begin; j < end; j += W) {
                        vec weight[PAIR], dlogit[PAIR];
                        for (int g = 0; g < PAIR; g++) {
                            const long t = i + r + g, at = (r + g) * TILE + j;
                            const ivec key = int32_t(j0 + j) + lanes();
                            weight[g] = exp_vec(load(logits + at) - log_sum[t]);
                            if (!all_visible) {
                                const ivec visible = (key <= int32_t(t)) & (key >= first[t]);
                                weight[g] = visible ? weight[g] : vec{};
                            }
                            vec factor = splat(1);
                            if (DROPOUT) factor = dropout.factors(head_seed, int32_t(t) - ivec{}, key);
                            dlogit[g] = weight[g] * (factor * load(dweights + at) - delta[t]);
                            weight[g] *= factor;
                            if (AMX) store(dlogit_rows + at, dlogit[g]);
                        }
                        store_factor(weights + r * TILE + j * PAIR, weight);
                        store_factor(dlogits + r * TILE + j * PAIR, dlogit);
                    }
                for (long j = begin; j < end; j += WIDE)
                    for (long d = 0; d < D; d += D_ROWS) {
                        const long from = d * row_T + i * column_T, to = d * TILE + j;
                        product<D_ROWS, VECS, true>(dV + to, TILE, dO_T + from, row_T, column_T, weights + j * PAIR,
                                                    TILE * PAIR, BLOCK);
                        product<D_ROWS, VECS, true>(dK + to, TILE, Q_T + from, row_T, column_T, dlogits + j * PAIR,
                                                    TILE * PAIR, BLOCK);
                    }
                for (long r = 0; r < BLOCK; r += ROWS)
                    for (long d = 0; d < D_PADDED; d += D_VECS * W)
                        product<ROWS, D_VECS, true>(dQ + (i + r) * D_PADDED + d, D_PADDED,
                                                    dlogit_rows + r * TILE + begin, TILE, 1,
                                                    K + begin * D_PADDED + d * PAIR, D_PADDED * PAIR, end - begin);
            }
            write(dk.head(b, h), j0, j1, dk.t, dK, column<TILE>);
            write(dv.head(b, h), j0, j1, dv.t, dV, column<TILE>);
        }
        write(dq.head(b, h), 0, n.T, dq.t, dQ, padded_row);
    }
}

extern "C" void attention_forward(long B, long T, long H, const int32_t *first_key, long seed, long n_dropped,
                                  float *lse, const Heads *x) {
    const auto run = n_dropped ? forward<true> : forward<false>;
    run(Shape{B, T, H, first_key}, Dropout(seed, n_dropped), lse, x[0], x[1], x[2], x[3]);
}
extern "C" void attention_backward(long B, long T, long H, const int32_t *first_key, long seed, long n_dropped,
                                   const float *lse, const Heads *x) {
    const auto run = n_dropped ? backward<true> : backward<false>;
    run(Shape{B, T, H, first_key}, Dropout(seed, n_dropped), lse, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7]);
}
