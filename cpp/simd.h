// Vectors of 16 floats, and numbers of 16 bits, as the kernels beside this file use them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

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
static inline void store(bf16 *to, vec x) {
    ivec bits = (ivec)x;
    halves h = __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, halves);
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
    x = x > -87.0f ? x : splat(-87.0f);
    vec t = x * 1.44269504f;
    vec n = (t + 12582912.0f) - 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    vec f = (t - n) * 0.693147181f;
    vec p = splat(1.0f / 720);
    p = p * f + 1.0f / 120;
    p = p * f + 1.0f / 24;
    p = p * f + 1.0f / 6;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    ivec exponent = (__builtin_convertvector(n, ivec) + 127) << 23;
    vec power;
    memcpy(&power, &exponent, sizeof power);
    return p * power;
}
