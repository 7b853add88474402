// Runs one kernel on made-up numbers and prints what comes out: test_other_processors.py compares processors by it.
// Compiled with -DATTENTION -DHEAD_WIDTH=…, -DLOSS or -DDECODE.
#include <cstdio>
#include <vector>
#ifdef ATTENTION
#include "cpu_attention.cpp"
#elif defined LOSS
#include "cpu_cross_entropy.cpp"
#else
#include "decode_step.cpp"
#endif

static uint32_t state = 1;
static float number() {  // between -1 and 1, the same on every machine
    state = state * 1664525u + 1013904223u;
    return float(int32_t(state) >> 8) / float(1 << 23);
}
template <typename E>
static std::vector<E> numbers(size_t n, float scale = 1) {
    std::vector<E> x(n + 64);
    for (size_t i = 0; i < n; i++) store(x[i], scale * number());
    return x;
}
template <typename E>
static void print(const std::vector<E> &x, size_t n) {
    for (size_t i = 0; i < n; i++) printf("%.6g\n", to_float(x[i]));
}

#ifdef ATTENTION
template <typename E>
static void run() {
    const long B = 2, T = 75, H = 3, size = B * T * H * D;
    auto q = numbers<E>(size), k = numbers<E>(size), v = numbers<E>(size), dout = numbers<E>(size);
    auto out = numbers<E>(size), dq = out, dk = out, dv = out;
    auto lse = numbers<float>(B * H * T);
    const Strides strides = {T * H * D, H * D, D};
    std::vector<int32_t> starts(B * T);  // of stories of 7 to 30 tokens
    for (long i = 0; i < B * T; i++) starts[i] = i % T < 7 ? 0 : i % T < 37 ? 7 : i % T < 56 ? 37 : 56;
    for (const int32_t *stories : {(const int32_t *)nullptr, (const int32_t *)starts.data()})
        for (long window : {T, 20L}) {
            const Shape shape = {B, T, H, window};
            forward(q.data(), k.data(), v.data(), stories, out.data(), lse.data(), shape, strides, strides);
            backward(q.data(), k.data(), v.data(), stories, out.data(), dout.data(), lse.data(), dq.data(), dk.data(),
                     dv.data(), shape, strides, strides, strides);
            print(lse, B * H * T);
            for (const auto &x : {out, dq, dk, dv}) print(x, size);
        }
}
#elif defined LOSS
template <typename E>
static void run() {
    const long n_rows = 5, n = 203;
    auto logits = numbers<E>(n_rows * n, 5);
    std::vector<float> losses(n_rows);
    const int64_t targets[n_rows] = {3, 202, -100, 0, 17};
    cross_entropy(logits.data(), targets, losses.data(), n_rows, n);
    print(losses, n_rows);
    print(logits, n_rows * n);
}
#else
struct Weights {  // keeps what a Model points to
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<bf16>> halves;

    float *vector(long n) { return floats.emplace_back(numbers<float>(n)).data(); }
    template <typename E>
    E *zeros(long n) {
        if constexpr (sizeof(E) == 4) return floats.emplace_back(n).data();
        else return halves.emplace_back(n).data();
    }
    float *table(long rows, long n) {  // rows padded with zeros
        float *x = floats.emplace_back(rows * padded(n)).data();
        for (long i = 0; i < rows; i++)
            for (long j = 0; j < n; j++) x[i * padded(n) + j] = number();
        return x;
    }
    Norm norm(long n) { return {table(1, n), table(1, n)}; }
    template <typename E>
    Linear linear(long in, long out) {  // as generation/decoders.py packs them
        E *w = zeros<E>(padded(in) * padded(out));
        for (long o = 0; o < out; o++)
            for (long i = 0; i < in; i++)
                store(w[((o / W * padded(in) / G<E> + i / G<E>) * W + o % W) * G<E> + i % G<E>], 0.3f * number());
        return {w, table(1, out), padded(in), padded(out)};
    }
};

template <typename E>
static void run() {
    const long n_layer = 2, n_head = 3, C = 24, vocab = 31, context = 90;
    Weights w;
    std::vector<Layer> layers;
    for (long i = 0; i < n_layer; i++) {
        const long window = i ? 10 : context, blocks = (std::min(window + 7, context) + W - 1) / W;
        const long cache = 2 * n_head * blocks * (C / n_head) * W;
        layers.push_back({w.norm(C), w.norm(C), w.linear<E>(C, 3 * C), w.linear<E>(C, C), w.linear<E>(C, 4 * C),
                          w.linear<E>(4 * C, C), w.zeros<E>(cache), w.zeros<E>(cache), window, blocks});
    }
    const Model model = {n_layer, n_head, C, w.table(vocab, C), w.table(context, C), layers.data(), w.norm(C),
                         w.linear<E>(C, vocab)};
    std::vector<float> work(9 * 8 * padded(C)), logits(2 * padded(vocab));
    for (int32_t step = 0; step < 40; step++) {  // two stories side by side
        const Row rows[2] = {{step % 31, 0, step}, {step * 7% 31, 1, step}};
        if constexpr (sizeof(E) == 4) forward<float, float>(model, rows, 2, logits.data(), 2, work.data());
        else forward<bf16, Bf16Input>(model, rows, 2, logits.data(), 2, work.data());
        for (long row = 0; row < 2; row++)
            for (long i = 0; i < vocab; i++) printf("%.6g\n", logits[row * padded(vocab) + i]);
    }
}
#endif

int main(int argc, char **) { argc > 1 ? run<bf16>() : run<float>(); }
