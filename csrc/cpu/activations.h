// tanh and the logistic sigmoid on Vec<T, W>, correct to about one unit in the last place,
// branch-free.
//
// tanh: |x| < 0.625: x + x^3 P(x^2)/Q(x^2); otherwise 1 - 2 / (exp(2|x|) + 1). The coefficients
// are those of the Cephes library (tanhf.c, expf.c, tanh.c, exp.c; S. Moshier).
#pragma once

#include "vec.h"

#if defined(__AVX512VL__)
#include <immintrin.h>
#endif

namespace bppsa::BPPSA_ISA {

template <typename T, int W>
BPPSA_INLINE Vec<T, W> select(Vec<typename IntOf<T>::type, W> mask, Vec<T, W> a, Vec<T, W> b) {
  return mask ? a : b;
}

// 2^n for integral n in the range of normal numbers.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> exp2i(Vec<T, W> n) {
  using I = typename IntOf<T>::type;
  constexpr int kMantissa = sizeof(T) == 4 ? 23 : 52;
  constexpr I kBias = sizeof(T) == 4 ? 127 : 1023;
  const Vec<I, W> bits = (__builtin_convertvector(n, Vec<I, W>) + kBias) << kMantissa;
  Vec<T, W> r;
  std::memcpy(&r, &bits, sizeof(r));
  return r;
}

template <int W>
BPPSA_INLINE Vec<double, W> exp_reduced(Vec<double, W> x, Vec<double, W> n) {
  const Vec<double, W> r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  const Vec<double, W> z = r * r;
  const Vec<double, W> p =
      r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 1.0);
  const Vec<double, W> q = ((3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z +
                            2.27265548208155028766e-1) *
                               z +
                           2.0;
  return 1.0 + 2.0 * (p / (q - p));
}

template <int W>
BPPSA_INLINE Vec<float, W> tanh_small(Vec<float, W> x, Vec<float, W> z) {
  Vec<float, W> p = splat<float, W>(-5.70498872745e-3f);
  p = p * z + 2.06390887954e-2f;
  p = p * z + -5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z + -3.33332819422e-1f;
  return p * z * x + x;
}

template <int W>
BPPSA_INLINE Vec<double, W> tanh_small(Vec<double, W> x, Vec<double, W> z) {
  const Vec<double, W> p =
      (-9.64399179425052238628e-1 * z + -9.92877231001918586564e1) * z + -1.61468768441708447952e3;
  const Vec<double, W> q = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z +
                           4.84406305325125486048e3;
  return x + x * z * (p / q);
}

// exp(x) for x in the range where it and its reciprocal are normal numbers; a NaN stays a NaN.
template <int W>
BPPSA_INLINE Vec<double, W> exp_in_range(Vec<double, W> x) {
  // Round to nearest by adding 1.5 * 2^mantissa: exact, and NaN-safe.
  constexpr double kMagic = 6755399441055744;
  Vec<double, W> n = x * 1.44269504088896340736 + kMagic;
  n = n - kMagic;
  // exp2i of a NaN's integer conversion is arbitrary, but it multiplies a NaN.
  return exp_reduced<W>(x, n) * exp2i<double, W>(n);
}

// x = n ln 2 + r, |r| <= ln 2 / 2: expm1(r) and 2^n.
template <int W>
struct ReducedExp {
  Vec<float, W> m, scale;
};

template <int W>
BPPSA_INLINE ReducedExp<W> reduced_exp(Vec<float, W> x) {
  constexpr float kMagic = 12582912;  // 1.5 * 2^23: adding it rounds to nearest
  const Vec<float, W> shifted = x * 1.44269504088896340736f + kMagic;
  const Vec<float, W> n = shifted - kMagic;
  const Vec<float, W> r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec<float, W> p = splat<float, W>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  // The low bits of `shifted` are those of n: up into the exponent. (A NaN makes nonsense here, but
  // m is a NaN then.)
  Vec<int32_t, W> bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits << 23) + (127 << 23);
  ReducedExp<W> result;
  result.m = p * (r * r) + r;
  std::memcpy(&result.scale, &bits, sizeof(bits));
  return result;
}

// 1 / x for normal x. Where the machine has an estimate to 14 bits, one Newton step on it costs a
// fifth of a division.
template <int W>
BPPSA_INLINE Vec<float, W> reciprocal(Vec<float, W> x) {
#if defined(__AVX512VL__)
  if constexpr (W >= 4) {
    Vec<float, W> y;
    if constexpr (W == 16) y = _mm512_maskz_rcp14_ps(0xffff, x);
    if constexpr (W == 8) y = _mm256_maskz_rcp14_ps(0xff, x);
    if constexpr (W == 4) y = _mm_maskz_rcp14_ps(0xf, x);
    return y + y * (1.0f - x * y);
  }
#endif
  return 1.0f / x;
}

template <int W>
BPPSA_INLINE Vec<double, W> reciprocal(Vec<double, W> x) {
  return 1 / x;
}

// a / b, to about half a unit in the last place more than a division: the quotient, corrected by
// what it leaves.
template <int W>
BPPSA_INLINE Vec<float, W> quotient(Vec<float, W> a, Vec<float, W> b) {
  const Vec<float, W> r = reciprocal<W>(b), q = a * r;
  return q + r * (a - q * b);
}

// A NaN compares false and stays a NaN.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> clamp(Vec<T, W> x, T limit) {
  const Vec<T, W> high = splat<T, W>(limit);
  const Vec<T, W> below = select<T, W>(x > high, high, x);
  return select<T, W>(below < -high, -high, below);
}

template <int W>
BPPSA_INLINE Vec<float, W> tanh_of(Vec<float, W> x) {
  const Vec<float, W> a = select<float, W>(x < 0, -x, x);
  // Beyond 10 the result is 1 to the last place.
  const Vec<float, W> limit = splat<float, W>(10);
  const ReducedExp<W> e = reduced_exp<W>(2 * select<float, W>(a > limit, limit, a));
  const Vec<float, W> large = 1 - 2 * reciprocal<W>(e.scale * e.m + (e.scale + 1));
  return select<float, W>(a < 0.625f, tanh_small<W>(x, x * x),
                          select<float, W>(x < 0, -large, large));
}

template <int W>
BPPSA_INLINE Vec<double, W> tanh_of(Vec<double, W> x) {
  const Vec<double, W> zero = {};
  const Vec<double, W> a = select<double, W>(x < zero, -x, x);
  // Beyond 22 the quotient is below half a unit in the last place of 1.
  const Vec<double, W> limit = splat<double, W>(22);
  const Vec<double, W> e = exp_in_range<W>(2 * select<double, W>(a > limit, limit, a));
  const Vec<double, W> large = 1 - 2 / (e + 1);
  const Vec<double, W> signed_large = select<double, W>(x < zero, -large, large);
  return select<double, W>(a < 0.625, tanh_small<W>(x, x * x), signed_large);
}

// Beyond the limits the result is 1, or smaller than any that is not rounded away.
template <int W>
BPPSA_INLINE Vec<float, W> sigmoid_of(Vec<float, W> x) {
  const ReducedExp<W> e = reduced_exp<W>(clamp<float, W>(-x, 87));
  return reciprocal<W>(e.scale * e.m + e.scale + 1);
}

template <int W>
BPPSA_INLINE Vec<double, W> sigmoid_of(Vec<double, W> x) {
  return 1 / (1 + exp_in_range<W>(clamp<double, W>(-x, 708)));
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W> tanh(Vec<T, W> x) {
  return tanh_of<W>(x);
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W> sigmoid(Vec<T, W> x) {
  return sigmoid_of<W>(x);
}

// tanh where is_tanh is 1, sigmoid where it is 0. With s = 1 + is_tanh, m = expm1(s x):
//   tanh x = m / (m + 2),   sigmoid x = (m + 1) / (m + 2)
template <typename T, int W>
BPPSA_INLINE Vec<T, W> tanh_or_sigmoid(Vec<T, W> x, Vec<T, W> is_tanh) {
  if constexpr (sizeof(T) == 4) {
    const ReducedExp<W> e = reduced_exp<W>(clamp<float, W>(x + x * is_tanh, 87));
    const Vec<float, W> power = e.scale * e.m;  // m + 1 = power + scale
    const Vec<float, W> above = power + (e.scale - is_tanh);
    return quotient<W>(above, (power + e.scale) + 1);
  } else {
    return select<T, W>(is_tanh > T(0), tanh<T, W>(x), sigmoid<T, W>(x));
  }
}

}  // namespace bppsa::BPPSA_ISA
