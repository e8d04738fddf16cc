// tanh and the logistic sigmoid on Vec<T, W>, branch-free. Errors are about one unit in the last
// place (of a sigmoid below 1e-4, three).
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
BPPSA_INLINE Vec<T, W> select(IntVec<T, W> mask, Vec<T, W> a, Vec<T, W> b) {
  return mask ? a : b;
}

// (Casts between vectors keep the bits.)
template <int W>
BPPSA_INLINE IntVec<float, W> sign_bits(Vec<float, W> x) {
  return (IntVec<float, W>)x & int32_t(1u << 31);
}

template <int W>
BPPSA_INLINE Vec<float, W> flip(Vec<float, W> x, IntVec<float, W> bits) {
  return (Vec<float, W>)((IntVec<float, W>)x ^ bits);
}

// For x below 0.625, z = x^2.
template <int W>
BPPSA_INLINE Vec<float, W> tanh_small(Vec<float, W> x, Vec<float, W> z) {
  const Vec<float, W> high = (-5.70498872745e-3f * z + 2.06390887954e-2f) * (z * z);
  const Vec<float, W> p =
      (high + (-5.37397155531e-2f * z + 1.33314422036e-1f)) * z + -3.33332819422e-1f;
  return p * (z * x) + x;
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
  using I = IntVec<double, W>;
  // Round to nearest by adding 1.5 * 2^mantissa: exact, and NaN-safe.
  constexpr double kMagic = 6755399441055744;
  Vec<double, W> n = x * 1.44269504088896340736 + kMagic;
  n = n - kMagic;
  const Vec<double, W> r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723212e-6;
  const Vec<double, W> z = r * r;
  const Vec<double, W> p =
      r * ((1.26177193074810590878e-4 * z + 3.02994407707441961300e-2) * z + 1.0);
  const Vec<double, W> q = ((3.00198505138664455042e-6 * z + 2.52448340349684104192e-3) * z +
                            2.27265548208155028766e-1) *
                               z +
                           2.0;
  // 2^n; of a NaN anything, but it multiplies a NaN.
  const auto scale = (Vec<double, W>)((__builtin_convertvector(n, I) + 1023) << 52);
  return (1.0 + 2.0 * (p / (q - p))) * scale;
}

// exp(s x) = 2^n (1 + p) for |s x| <= 87, s = -1 or 2. With x = n (ln 2 / s) + r, p = expm1(s r),
// to 2^-26; the polynomial is evaluated in pairs, as a step of a recurrence waits for it.
template <int W>
struct ReducedExp {
  Vec<float, W> p, scale;
};

template <int W, int s>
BPPSA_INLINE ReducedExp<W> reduced_exp(Vec<float, W> x) {
  constexpr float kMagic = 12582912;  // 1.5 * 2^23: adding it rounds to nearest
  const Vec<float, W> shifted = x * (s * 1.44269504088896340736f) + kMagic;
  const Vec<float, W> n = shifted - kMagic;
#if defined(__FMA__) || defined(__aarch64__)
  // ln 2 is by luck a float to 2^-28, so it need not be subtracted in two parts.
  const Vec<float, W> r = x - n * (0.693147180559945309417f / s);
#else
  const Vec<float, W> r = (x - n * (0.693359375f / s)) + n * (2.12194440e-4f / s);
#endif
  const Vec<float, W> r2 = r * r;
  const Vec<float, W> low = r * (s * s * s * 1.666654236e-1f) + s * s * 4.999999813e-1f;
  const Vec<float, W> middle =
      r * (s * s * s * s * s * 8.366690336e-3f) + s * s * s * s * 4.166720493e-2f;
  const Vec<float, W> high = r2 * (s * s * s * s * s * s * 1.388251357e-3f) + middle;
  ReducedExp<W> result;
  result.p = (high * r2 + low) * r2 + s * r;
  // The low bits of `shifted` are those of n: up into the exponent. (A NaN makes nonsense here, but
  // p is a NaN then.)
  result.scale = (Vec<float, W>)(((IntVec<float, W>)shifted << 23) + (127 << 23));
  return result;
}

// 1 / x for normal x. Where the machine has an estimate to 14 bits, one Newton step on it costs a
// fifth of a division.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> reciprocal(Vec<T, W> x) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(T) == 4 && W >= 4) {
    Vec<float, W> y;
    if constexpr (W == 16) y = _mm512_maskz_rcp14_ps(0xffff, x);
    if constexpr (W == 8) y = _mm256_maskz_rcp14_ps(0xff, x);
    if constexpr (W == 4) y = _mm_maskz_rcp14_ps(0xf, x);
    return y + y * (1.0f - x * y);
  }
#endif
  return 1 / x;
}

// 1 / (1 + exp(s x)).
template <int W>
BPPSA_INLINE Vec<float, W> reciprocal_of_1_plus(const ReducedExp<W>& e) {
  return reciprocal<float, W>(e.scale * e.p + (e.scale + 1));
}

// The lesser, or x where it is a NaN: one instruction, which compilers do not find everywhere.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> at_most(Vec<T, W> limit, Vec<T, W> x) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(T) == 4 && W == 16) return _mm512_maskz_min_ps(0xffff, limit, x);
  if constexpr (sizeof(T) == 4 && W == 8) return _mm256_maskz_min_ps(0xff, limit, x);
  if constexpr (sizeof(T) == 4 && W == 4) return _mm_maskz_min_ps(0xf, limit, x);
#endif
  return x > limit ? limit : x;
}

// The greater, or x where it is a NaN.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> at_least(Vec<T, W> limit, Vec<T, W> x) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(T) == 4 && W == 16) return _mm512_maskz_max_ps(0xffff, limit, x);
  if constexpr (sizeof(T) == 4 && W == 8) return _mm256_maskz_max_ps(0xff, limit, x);
  if constexpr (sizeof(T) == 4 && W == 4) return _mm_maskz_max_ps(0xf, limit, x);
#endif
  return x < limit ? limit : x;
}

// x between -limit and limit; a NaN stays a NaN.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> clamp(Vec<T, W> x, T limit) {
  return at_least<T, W>(splat<T, W>(-limit), at_most<T, W>(splat<T, W>(limit), x));
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W> tanh(Vec<T, W> x) {
  if constexpr (sizeof(T) == 4) {
    const IntVec<T, W> sign = sign_bits<W>(x);
    const Vec<T, W> a = flip<W>(x, sign);
    // Beyond 10 the result is 1 to the last place.
    const ReducedExp<W> e = reduced_exp<W, 2>(at_most<T, W>(splat<T, W>(10), a));
    const Vec<T, W> large = 1 - 2 * reciprocal_of_1_plus<W>(e);
    return a < 0.625f ? tanh_small<W>(x, x * x) : flip<W>(large, sign);
  } else {
    const Vec<T, W> a = x < 0 ? -x : x;
    // Beyond 22 the quotient is below half a unit in the last place of 1.
    const Vec<T, W> e = exp_in_range<W>(2 * at_most<T, W>(splat<T, W>(22), a));
    const Vec<T, W> large = 1 - 2 / (e + 1);
    return a < 0.625 ? tanh_small<W>(x, x * x) : (x < 0 ? -large : large);
  }
}

// Beyond the limits the result is 1, or smaller than any that is not rounded away.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> sigmoid(Vec<T, W> x) {
  if constexpr (sizeof(T) == 4)
    return reciprocal_of_1_plus<W>(reduced_exp<W, -1>(clamp<T, W>(x, 87)));
  else
    return 1 / (1 + exp_in_range<W>(clamp<T, W>(-x, 708)));
}

// tanh where chosen, elsewhere sigmoid: they share what they can.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> sigmoid_or_tanh(IntVec<T, W> to_tanh, Vec<T, W> x) {
  if constexpr (sizeof(T) == 4) {
    const IntVec<T, W> sign = sign_bits<W>(x);
    const Vec<T, W> a = flip<W>(x, sign);
    const Vec<T, W> scaled = to_tanh ? a + a : -x;
    const Vec<T, W> r = reciprocal_of_1_plus<W>(reduced_exp<W, 1>(clamp<T, W>(scaled, 87)));
    const Vec<T, W> large = flip<W>(1 - 2 * r, sign);
    const Vec<T, W> small = tanh_small<W>(x, x * x);
    return to_tanh ? (a < 0.625f ? small : large) : r;
  } else {
    return to_tanh ? tanh<T, W>(x) : sigmoid<T, W>(x);
  }
}

// What a cell's formula is written in, beside arithmetic (cells/cell.h).
template <typename T, int W>
struct VectorMath {
  using V = Vec<T, W>;

  BPPSA_INLINE static V tanh(V x) { return BPPSA_ISA::tanh<T, W>(x); }
  BPPSA_INLINE static V sigmoid(V x) { return BPPSA_ISA::sigmoid<T, W>(x); }
  BPPSA_INLINE static V reciprocal(V x) { return BPPSA_ISA::reciprocal<T, W>(x); }
  BPPSA_INLINE static V select(IntVec<T, W> mask, V a, V b) { return mask ? a : b; }
};

}  // namespace bppsa::BPPSA_ISA
