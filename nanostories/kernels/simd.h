// Vectors as wide as the processor's registers, and bfloat16 numbers, for the kernels beside this file.
//
// AVX-512: 16 floats; AVX2: 8; anything else, NEON among it: 4. A wider vector than the registers would be split by the
// compiler, which then spills most of it and compares lane by lane: on AVX2, vectors of 16 made attention 5 times slower.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef __AVX2__
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int W = 16, REGISTERS = 32;  // floats in a vec, and how many of them the processor holds
#elif defined(__AVX2__)
constexpr int W = 8, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int W = 4, REGISTERS = 32;
#else
constexpr int W = 4, REGISTERS = 16;
#endif

typedef float vec __attribute__((vector_size(4 * W)));
typedef int32_t ivec __attribute__((vector_size(4 * W)));
typedef uint16_t halves __attribute__((vector_size(2 * W)));

static inline vec splat(float x) { return x - vec{}; }

// a * b + c, rounded once. Explicit, not left to the compiler: GCC, tuned for AMD's processors, fuses some loops and not
// others, and a story would depend on how many are generated at a time.
static inline vec fma(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
static inline ivec lanes() {  // 0, 1, 2, …
    ivec v;
    for (int l = 0; l < W; l++) v[l] = l;
    return v;
}

struct bf16 {
    uint16_t bits;
};

template <typename E = float>
struct Buffer {  // zero at first, aligned to a vec
    E *data;
    Buffer(size_t n) {
        const size_t size = (n * sizeof(E) + 63) / 64 * 64;
        data = (E *)aligned_alloc(64, size);
        memset((void *)data, 0, size);
    }
    ~Buffer() { free(data); }
    operator E *() { return data; }
};

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline void store(float &to, float x) { to = x; }
static inline void store(float &to, bf16 x) { to = to_float(x); }
static inline void store(bf16 &to, bf16 x) { to = x; }
static inline void store(bf16 &to, float x) {  // round to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to.bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// W numbers from or to anywhere: memcpy, as they may not be aligned.
static inline vec load(const float *x) {
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}
static inline ivec load(const int32_t *x) {
    ivec v;
    memcpy(&v, x, sizeof v);
    return v;
}
static inline vec load(const bf16 *x) {
    halves h;
    memcpy(&h, x, sizeof h);
    return (vec)(__builtin_convertvector(h, ivec) << 16);
}
static inline void store(float *to, vec x) { memcpy(to, &x, sizeof x); }
static inline void store(bf16 *to, vec x) {
#ifdef __AVX512BF16__
    halves h = (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    ivec bits = (ivec)x;
    halves h = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
#endif
    memcpy(to, &h, sizeof h);
}

static inline float sum(vec x) {  // by halves: in a chain of W additions, each would wait for the one before
    typedef float vec4 __attribute__((vector_size(16)));
    vec4 part[W / 4];
    memcpy(part, &x, sizeof x);
    for (int n = W / 8; n > 0; n /= 2)
        for (int i = 0; i < n; i++) part[i] += part[i + n];
    return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
}

static inline vec larger(vec x, vec y) {  // the compiler makes two instructions of x > y ? x : y
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)x, (__m512)y);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)x, (__m256)y);
#else
    return x > y ? x : y;
#endif
}
static inline float horizontal_max(vec x) {
    float top = x[0];
    for (int l = 1; l < W; l++) top = x[l] > top ? x[l] : top;
    return top;
}

// exp(x) for x <= 0, with relative error 2e-7: 2^n * 2^f with |f| <= 1/2, the latter by the best polynomial of degree 5.
static inline vec exp_vec(vec x) {
    const vec t = larger(x * 1.44269504f, splat(-126.0f));
#ifdef __AVX512F__
    const vec n = (vec)_mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const vec n = (t + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
#endif
    const vec f = t - n;
    vec p = splat(1.32647266e-3f);
    p = fma(p, f, splat(9.67151296e-3f));
    p = fma(p, f, splat(5.55073375e-2f));
    p = fma(p, f, splat(2.40222421e-1f));
    p = fma(p, f, splat(6.93146978e-1f));
    p = fma(p, f, splat(1.0f));
#ifdef __AVX512F__
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return p * (vec)((__builtin_convertvector(n, ivec) + 127) << 23);
#endif
}

static inline vec sigmoid(vec x) {
    const vec e = exp_vec(x > 0 ? -x : x);
    return (x > 0 ? splat(1) : e) / (1 + e);
}

// GELU, tanh approximation: x sigmoid(GELU_SLOPE (x + GELU_CUBIC x^3)).
constexpr float GELU_SLOPE = 1.5957691216f, GELU_CUBIC = 0.044715f;
static inline vec gelu_gate(vec x) { return sigmoid(GELU_SLOPE * (x + GELU_CUBIC * x * x * x)); }

// ---- Products of vectors of weights, float or bf16, with single numbers ----

// How many weights share the 4 bytes of a lane; each is multiplied with an input of its own.
template <typename E>
constexpr int G = 4 / sizeof(E);

#ifdef __AVX512BF16__
typedef bf16 Bf16Input;  // bf16 weights are multiplied with bf16, two products in one instruction, if the processor has it,
struct Pairs {
    ivec both;
};
static inline Pairs load_pairs(const bf16 *w) {
    ivec both;  // not a Pairs: the compiler may copy a struct in two halves, at half the speed
    memcpy(&both, w, sizeof both);
    return {both};
}
static inline vec multiply_add(vec total, const bf16 *x, Pairs w) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w.both);
}
#else
typedef float Bf16Input;  // else with float32: bf16 is then only how weights are stored, in half the memory
struct Pairs {
    vec even, odd;
};
static inline Pairs load_pairs(const bf16 *w) {
    ivec both;
    memcpy(&both, w, sizeof both);
    return {(vec)(both << 16), (vec)(both & int32_t(0xffff0000))};
}
static inline vec multiply_add(vec total, const float *x, Pairs w) { return fma(splat(x[1]), w.odd, fma(splat(x[0]), w.even, total)); }
#endif
static inline vec load_pairs(const float *w) { return load(w); }
static inline vec multiply_add(vec total, const float *x, vec w) { return fma(splat(x[0]), w, total); }
