// 16-bit floats, W at a time: numbers.h's conversions, bit for bit. Where no instruction does it,
// the same formulas without branches.
#pragma once

#include "numbers.h"
#include "vec.h"

namespace bppsa::BPPSA_ISA {

template <int W>
using Bits = Vec<int32_t, W>;

template <int W, typename S>
BPPSA_INLINE Bits<W> load_bits(const S* p) {
  return __builtin_convertvector((load<uint16_t, W>(&p->bits)), Bits<W>);
}

template <int W, typename S>
BPPSA_INLINE void store_bits(S* p, Bits<W> half) {
  store<uint16_t, W>(&p->bits, __builtin_convertvector(half, Vec<uint16_t, W>));
}

// W numbers in memory, as they are computed with.
template <int W>
BPPSA_INLINE Vec<float, W> widen_all(const float* p) {
  return load<float, W>(p);
}

template <int W>
BPPSA_INLINE Vec<double, W> widen_all(const double* p) {
  return load<double, W>(p);
}

template <int W>
BPPSA_INLINE Vec<float, W> widen_all(const BFloat16* p) {
  return Vec<float, W>(load_bits<W>(p) << 16);
}

template <int W>
BPPSA_INLINE void narrow_all(Vec<float, W> x, BFloat16* p) {
  const Bits<W> bits = Bits<W>(x), last = bits >> 16 & 1;
  store_bits<W>(p, (x == x ? bits + (last + 0x7fff) : bits | 0x400000) >> 16);
}

#ifdef __F16C__

template <int W>
BPPSA_INLINE Vec<float, W> widen_all(const Float16* p) {
  Vec<float, W> x;
  if constexpr (W == 16) {
    x = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  } else if constexpr (W == 8) {
    x = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  } else {
    __m128i half{};
    std::memcpy(&half, p, W * sizeof(*p));
    const __m128 some = _mm_cvtph_ps(half);
    std::memcpy(&x, &some, sizeof(x));
  }
  return x;
}

template <int W>
BPPSA_INLINE void narrow_all(Vec<float, W> x, Float16* p) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT;
  if constexpr (W == 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, kNearest));
  } else if constexpr (W == 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, kNearest));
  } else {
    __m128 some{};
    std::memcpy(&some, &x, sizeof(x));
    const __m128i half = _mm_cvtps_ph(some, kNearest);
    std::memcpy(p, &half, W * sizeof(*p));
  }
}

#else

template <int W>
BPPSA_INLINE Vec<float, W> widen_all(const Float16* p) {
  using V = Vec<float, W>;
  const Bits<W> half = load_bits<W>(p);
  const Bits<W> rest = half & 0x7fff, shifted = rest << 13;
  const Bits<W> normal = shifted + 0x38000000, special = shifted + 0x70000000;
  const Bits<W> subnormal = Bits<W>(V(shifted + 0x38800000) - 0x1p-14f);
  const Bits<W> number = rest < 0x400 ? subnormal : normal;
  return V((rest < 0x7c00 ? number : special) | (half & 0x8000) << 16);
}

template <int W>
BPPSA_INLINE void narrow_all(Vec<float, W> x, Float16* p) {
  using V = Vec<float, W>;
  const Bits<W> bits = Bits<W>(x), rest = bits & 0x7fffffff;
  const Bits<W> normal = (rest - 0x38000000 + (rest >> 13 & 1) + 0xfff) >> 13;
  const Bits<W> subnormal = Bits<W>(V(rest) + 0.5f) - 0x3f000000;
  const Bits<W> number = rest < 0x38800000 ? subnormal : normal;
  const Bits<W> special = rest > 0x7f800000 ? Bits<W>{} + 0x7e00 : Bits<W>{} + 0x7c00;
  store_bits<W>(p, (rest < 0x477ff000 ? number : special) | (bits >> 16 & 0x8000));
}

#endif

// n numbers in memory, `stride` apart, to those they are computed with; and back, side by side.
template <typename S, typename T = typename ComputeOf<S>::type>
BPPSA_INLINE void widen_row(int64_t n, const S* p, int64_t stride, T* to) {
  constexpr int W = kMaxWidth<T>;
  int64_t i = 0;
  if constexpr (sizeof(S) < sizeof(T))
    for (; stride == 1 && i + W <= n; i += W) store<T, W>(to + i, widen_all<W>(p + i));
  for (; i < n; ++i) to[i] = widen(p[i * stride]);
}

template <typename S, typename T = typename ComputeOf<S>::type>
BPPSA_INLINE void narrow_row(int64_t n, const T* x, S* to) {
  constexpr int W = kMaxWidth<T>;
  int64_t i = 0;
  if constexpr (sizeof(S) < sizeof(T))
    for (; i + W <= n; i += W) narrow_all<W>(load<T, W>(x + i), to + i);
  for (; i < n; ++i) to[i] = narrow<S>(x[i]);
}

}  // namespace bppsa::BPPSA_ISA
