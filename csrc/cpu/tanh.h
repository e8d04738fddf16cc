// tanh on Vec<T, W>, correct to about one unit in the last place, branch-free.
//
// |x| < 0.625: x + x^3 P(x^2)/Q(x^2); otherwise 1 - 2 / (exp(2|x|) + 1). The coefficients
// are those of the Cephes library (tanhf.c, expf.c, tanh.c, exp.c; S. Moshier).
#pragma once

#include "vec.h"

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
BPPSA_INLINE Vec<float, W> exp_reduced(Vec<float, W> x, Vec<float, W> n) {
  const Vec<float, W> r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  Vec<float, W> p = splat<float, W>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return (p * (r * r) + r) + 1.0f;
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

template <typename T, int W>
BPPSA_INLINE Vec<T, W> tanh(Vec<T, W> x) {
  const Vec<T, W> zero = {};
  const Vec<T, W> a = select<T, W>(x < zero, -x, x);
  // Beyond this the quotient is below half a unit in the last place of 1; the bound keeps
  // exp finite. A NaN compares false and stays a NaN.
  const Vec<T, W> limit = splat<T, W>(sizeof(T) == 4 ? T(10) : T(22));
  const Vec<T, W> y = 2 * select<T, W>(a > limit, limit, a);
  // Round to nearest by adding 1.5 * 2^mantissa: exact, and NaN-safe.
  const T magic = sizeof(T) == 4 ? T(12582912) : T(6755399441055744);
  Vec<T, W> n = y * T(1.44269504088896340736) + magic;
  n = n - magic;
  // exp2i of a NaN's integer conversion is arbitrary, but it multiplies a NaN.
  const Vec<T, W> e = exp_reduced<W>(y, n) * exp2i<T, W>(n);
  const Vec<T, W> large = 1 - 2 / (e + 1);
  const Vec<T, W> signed_large = select<T, W>(x < zero, -large, large);
  return select<T, W>(a < T(0.625), tanh_small<W>(x, x * x), signed_large);
}

}  // namespace bppsa::BPPSA_ISA
