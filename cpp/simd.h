// Vectors of 16 floats, and numbers of 16 bits, as the kernels beside this file use them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
constexpr int W = 16;  // floats in a vec; the compiler splits it where registers are narrower
const ivec LANES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct bf16 {
    uint16_t bits;
};
static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline void store(float &to, float x) { to = x; }
static inline void store(bf16 &to, float x) {  // round to nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to.bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline vec splat(float x) { return x - vec{}; }

// 16 numbers from or to anywhere: memcpy, as they may not be aligned.
typedef uint16_t halves __attribute__((vector_size(32)));
static inline vec load(const float *x) {
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}
static inline vec load(const bf16 *x) {
    halves h;
    memcpy(&h, x, sizeof h);
    return (vec)(__builtin_convertvector(h, ivec) << 16);
}
static inline void store(float *to, vec x) { memcpy(to, &x, sizeof x); }
static inline ivec rounded(vec x) {  // to bfloat16, in the upper halves: to nearest, ties to even
    ivec bits = (ivec)x;
    return bits + 0x7fff + ((bits >> 16) & 1);
}
static inline void store(bf16 *to, vec x) {
#ifdef __AVX512BF16__
    halves h = (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    halves h = __builtin_convertvector(rounded(x) >> 16, halves);
#endif
    memcpy(to, &h, sizeof h);
}

static inline float sum(vec x) {  // by halves: a chain of 16 additions would wait for each of them
    typedef float vec8 __attribute__((vector_size(32)));
    typedef float vec4 __attribute__((vector_size(16)));
    vec8 eight[2];
    memcpy(eight, &x, sizeof eight);
    eight[0] += eight[1];
    vec4 four[2];
    memcpy(four, eight, sizeof four);
    four[0] += four[1];
    return (four[0][0] + four[0][2]) + (four[0][1] + four[0][3]);
}

static inline float largest_of(vec x) {
    float top = x[0];
    for (int l = 1; l < W; l++) top = x[l] > top ? x[l] : top;
    return top;
}

// exp(x) for x <= 0, to float32 accuracy: 2^n * 2^f with |f| <= 1/2, the latter by its Taylor series.
static inline vec exp_vec(vec x) {
    vec t = x * 1.44269504f;
    t = t > -126.0f ? t : splat(-126.0f);
#ifdef __AVX512F__
    vec n = (vec)_mm512_roundscale_ps((__m512)t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vec n = (t + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
#endif
    vec f = t - n;
    vec p = splat(1.54035304e-4f);  // ln(2)^6 / 6!, and so on
    p = p * f + 1.33335581e-3f;
    p = p * f + 9.61812911e-3f;
    p = p * f + 5.55041087e-2f;
    p = p * f + 2.40226507e-1f;
    p = p * f + 6.93147181e-1f;
    p = p * f + 1.0f;
#ifdef __AVX512F__
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    ivec exponent = (__builtin_convertvector(n, ivec) + 127) << 23;
    vec power;
    memcpy(&power, &exponent, sizeof power);
    return p * power;
#endif
}

// Products of 16-bit numbers go two at a time: G numbers of E share the 4 bytes of a lane.
template <typename E>
constexpr int G = 4 / sizeof(E);

// total + the sum over g of x[g] * w[lane][g], for G numbers at x and the 16 x G of w
static inline vec multiply_add(vec total, const float *x, const float *w) { return total + *x * load(w); }
static inline vec multiply_add(vec total, const bf16 *x, const bf16 *w) {
    int32_t pair;
    memcpy(&pair, x, 4);
    ivec bits;
    memcpy(&bits, w, sizeof bits);
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)bits);
#else
    return total + to_float(x[0]) * (vec)(bits << 16) + to_float(x[1]) * (vec)(bits & int32_t(0xffff0000));
#endif
}

// total + the sum over g of x[lane][g] * w[lane][g]
static inline vec multiply_add_lanes(vec total, const float *x, const float *w) { return total + load(x) * load(w); }
static inline vec multiply_add_lanes(vec total, const bf16 *x, const bf16 *w) {
    ivec a, b;
    memcpy(&a, x, sizeof a);
    memcpy(&b, w, sizeof b);
#ifdef __AVX512BF16__
    return (vec)_mm512_dpbf16_ps((__m512)total, (__m512bh)a, (__m512bh)b);
#else
    const int32_t high = int32_t(0xffff0000);
    return total + (vec)(a << 16) * (vec)(b << 16) + (vec)(a & high) * (vec)(b & high);
#endif
}
