// GPT-Neo with a cache, a few tokens at a time, on a CPU; nanostories/generation/decoders.py packs the weights and calls it.
//
// Each row is one token of some story: its id, the slot of the cache that its story lives in, and its position there.
// A step of generation is a row from every story; a prompt is read as many rows of one slot. Whatever rows come
// together, each number is summed in the same order, so that no bit of a story depends on the others.
//
// E is float or bf16: the type of the weights and of the cache. X is the type of the inputs that they are multiplied with:
// float, or bf16 where the processor multiplies two of them at once. Sums, softmax, LayerNorm and the residual stream
// are float32. All widths here are padded with zeros to multiples of `n_lanes`, which nanostories/generation/decoders.py reads.
#include <algorithm>

#include "simd.h"

struct Linear {         // out = weight x + bias
    const void *weight;  // (out/W, in/G, W, G), with G numbers of E in 4 bytes
    const float *bias;
    long in, out;
};
struct Norm {
    const float *weight, *bias;
};
struct Layer {
    Norm ln_1, ln_2;
    Linear qkv, attention_out, mlp_in, mlp_out;
    void *k, *v;          // (slots, n_head, blocks, n_embd / n_head, W): W positions lie side by side
    long window, blocks;  // position p lies in block p / W % blocks
};
struct Model {
    long n_layer, n_head, n_embd;
    const float *wte, *wpe;
    const Layer *layers;
    Norm ln_f;
    Linear head;
};
struct Row {
    int32_t token, slot, position;
};

// R x C sums at once, as many as stay in registers beside C vectors of weights
constexpr int R = REGISTERS == 32 ? 6 : 2, C = 4;

static inline long padded(long n) { return (n + W - 1) / W * W; }

// Rows of x from `row` on, N_ROWS at a time, times N_VECS vectors of columns. done(row, column, sums) takes the sums.
template <typename E, int N_ROWS, int N_VECS, typename X, typename Done>
static inline void columns(const X *x, long row, long n_rows, const Linear &l, long column, Done done) {
    const E *w = (const E *)l.weight + column * l.in;
    for (; row + N_ROWS <= n_rows; row += N_ROWS) {
        vec total[N_ROWS][N_VECS] = {};
        for (long k = 0; k < l.in; k += G<E>)
            for (int c = 0; c < N_VECS; c++) {
                const auto weights = load_pairs(w + (c * l.in + k) * W);
                for (int r = 0; r < N_ROWS; r++)
                    total[r][c] = multiply_add(total[r][c], x + (row + r) * l.in + k, weights);
            }
        for (int r = 0; r < N_ROWS; r++)
            for (int c = 0; c < N_VECS; c++) done(row + r, column + c * W, total[r][c] + load(l.bias + column + c * W));
    }
    if constexpr (N_ROWS > 1) columns<E, N_ROWS / 2, N_VECS>(x, row, n_rows, l, column, done);
}

template <typename E, typename X, typename Done>
static void linear(const X *x, long n_rows, const Linear &l, Done done) {
#pragma omp for schedule(static)
    for (long column = 0; column < l.out; column += C * W) {
        if (column + C * W <= l.out)
            columns<E, R, C>(x, 0, n_rows, l, column, done);
        else
            for (long c = column; c < l.out; c += W) columns<E, R, 1>(x, 0, n_rows, l, c, done);
    }
}

template <typename X>
static void layer_norm(X *out, const float *x, long n_rows, long n, const Norm &norm) {
    const long stride = padded(n);
#pragma omp for schedule(static)
    for (long row = 0; row < n_rows; row++) {
        const float *from = x + row * stride;
        vec total = {}, squares = {};
        for (long i = 0; i < stride; i += W) total += load(from + i);
        const float mean = sum(total) / n;
        for (long i = 0; i < stride; i += W) {
            vec difference = int32_t(i) + lanes() < int32_t(n) ? load(from + i) - mean : vec{};
            squares = fma(difference, difference, squares);
        }
        const float factor = 1 / std::sqrt(sum(squares) / n + 1e-5f);
        for (long i = 0; i < stride; i += W)
            store(out + row * stride + i,
                  (load(from + i) - mean) * factor * load(norm.weight + i) + load(norm.bias + i));
    }
}

// The part of its slot that one query attends to: n_blocks of D x W numbers from block `start`, wrapping at `end`.
template <typename E>
struct Seen {
    const E *k, *v, *next;  // next: read after these
    long D, n_blocks, start, end;

    // Calls visit(i, offset of its numbers) for each block, in the order of the positions.
    template <typename Visit>
    void each_block(Visit visit) const {
        for (long i = 0, block = start; i < n_blocks; i++, block = block + 1 == end ? 0 : block + 1)
            visit(i, block * D * W);
    }
};

// out[d] = sum over the blocks of weights x v[d], for N numbers of a head. Most of the time goes into waiting for memory.
template <int N, typename E, typename X>
static inline void weighted_sum(X *out, const vec *weights, float all, const Seen<E> &seen, long from) {
    vec total[N] = {};
    seen.each_block([&](long i, long block) {
        for (int d = 0; d < N; d++) {
            total[d] = fma(weights[i], load(seen.v + block + (from + d) * W), total[d]);
            __builtin_prefetch(seen.next + block + (from + d) * W);
        }
    });
    for (int d = 0; d < N; d++) store(out[from + d], sum(total[d]) / all);
}

// Attention of one query to the keys and values of its head in its window. weights: space for one vector per block.
template <typename E, typename X>
static void attend(X *out, const float *q, const E *k, const E *v, long D, long position, const Layer &layer,
                   vec *weights) {
    const long first = position < layer.window ? 0 : position - layer.window + 1;
    const Seen<E> seen = {k, v, k + layer.blocks * D * W, D, position / W - first / W + 1, first / W % layer.blocks,
                          layer.blocks};
    vec largest = splat(-INFINITY), total = {};
    seen.each_block([&](long i, long block) {
        vec logits = {};
        for (long d = 0; d < D; d++) {
            logits = fma(splat(q[d]), load(k + block + d * W), logits);
            __builtin_prefetch(v + block + d * W);  // on its way while the softmax is computed
        }
        const ivec at = int32_t((first / W + i) * W) + lanes();
        const ivec visible = (at >= int32_t(first)) & (at <= int32_t(position));
        weights[i] = visible ? logits : splat(-INFINITY);
        largest = larger(largest, weights[i]);
    });
    const float top = horizontal_max(largest);
    for (long i = 0; i < seen.n_blocks; i++) {
        weights[i] = weights[i] == -INFINITY ? vec{} : exp_vec(weights[i] - top);
        total += weights[i];
    }
    const float all = sum(total);
    long d = 0;
    for (; d + REGISTERS / 2 <= D; d += REGISTERS / 2) weighted_sum<REGISTERS / 2>(out, weights, all, seen, d);
    for (; d + 4 <= D; d += 4) weighted_sum<4>(out, weights, all, seen, d);
    for (; d < D; d++) weighted_sum<1>(out, weights, all, seen, d);
}

// Appends the rows to the cache -> logits (n_logits, padded vocab_size) of the tokens after the last n_logits of them.
// work: space for 9 padded n_embd for each row.
template <typename E, typename X>
static void forward(const Model &m, const Row *rows, long n_rows, float *logits, long n_logits, float *work) {
    const long n = m.n_embd, D = n / m.n_head, stride = padded(n);
    float *x = work;                             // (rows, n_embd)
    float *qkv = x + n_rows * stride;            // (rows, 3 n_embd)
    X *h = (X *)(qkv + n_rows * padded(3 * n));  // (rows, n_embd), the input of a Linear
    X *wide = h + n_rows * stride;               // (rows, 4 n_embd)
    long most_blocks = 0;
    for (long i = 0; i < m.n_layer; i++) most_blocks = std::max(most_blocks, m.layers[i].blocks + 1);
#pragma omp parallel
    {
        vec weights[most_blocks];  // attention weights of one head, on each thread's stack
        const auto add = [&](long row, long column, vec y) {
            float *to = x + row * stride + column;
            store(to, load(to) + y);
        };
#pragma omp for schedule(static)
        for (long row = 0; row < n_rows; row++)
            for (long i = 0; i < stride; i += W)
                store(x + row * stride + i,
                      load(m.wte + rows[row].token * stride + i) + load(m.wpe + rows[row].position * stride + i));
        for (const Layer *layer = m.layers; layer < m.layers + m.n_layer; layer++) {
            const long per_head = layer->blocks * D * W;
            layer_norm(h, x, n_rows, n, layer->ln_1);
            linear<E>(h, n_rows, layer->qkv, [&](long row, long column, vec y) {
                store(qkv + row * layer->qkv.out + column, y);
            });
#pragma omp for schedule(static) collapse(2)
            for (long row = 0; row < n_rows; row++)
                for (long head = 0; head < m.n_head; head++) {
                    const float *from = qkv + row * layer->qkv.out + n + head * D;
                    long slot = rows[row].slot, position = rows[row].position;
                    long to = (slot * m.n_head + head) * per_head + position / W % layer->blocks * D * W + position % W;
                    for (long d = 0; d < D; d++) {
                        store(((E *)layer->k)[to + d * W], from[d]);
                        store(((E *)layer->v)[to + d * W], from[n + d]);
                    }
                }
#pragma omp for schedule(static) collapse(2)
            for (long row = 0; row < n_rows; row++)
                for (long head = 0; head < m.n_head; head++) {
                    long at = (rows[row].slot * m.n_head + head) * per_head;
                    attend(h + row * stride + head * D, qkv + row * layer->qkv.out + head * D, (E *)layer->k + at,
                           (E *)layer->v + at, D, rows[row].position, *layer, weights);
                }
            linear<E>(h, n_rows, layer->attention_out, add);
            layer_norm(h, x, n_rows, n, layer->ln_2);
            linear<E>(h, n_rows, layer->mlp_in, [&](long row, long column, vec y) {
                store(wide + row * layer->mlp_in.out + column, y * gelu_gate(y));
            });
            linear<E>(wide, n_rows, layer->mlp_out, add);
        }
        layer_norm(h, x, n_rows, n, m.ln_f);
        linear<E>(h + (n_rows - n_logits) * stride, n_logits, m.head, [&](long row, long column, vec y) {
            store(logits + row * m.head.out + column, y);
        });
    }
}

extern "C" {
extern const int n_lanes = W;

void forward_float32(const Model *m, const Row *rows, long n_rows, float *logits, long n_logits, float *work) {
    forward<float, float>(*m, rows, n_rows, logits, n_logits, work);
}
void forward_bfloat16(const Model *m, const Row *rows, long n_rows, float *logits, long n_logits, float *work) {
    forward<bf16, Bf16Input>(*m, rows, n_rows, logits, n_logits, work);
}
}
