// Numbers as they lie in memory, and the type they are computed in: 16-bit floats are
// widened to float32 at each load and rounded to nearest-even at each store.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "../requests/plan.h"
#include "isa.h"

namespace bppsa::BPPSA_ISA {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

template <typename S>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};

BPPSA_INLINE float as_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }
BPPSA_INLINE uint32_t as_bits(float f) { return __builtin_bit_cast(uint32_t, f); }

BPPSA_INLINE float widen(float x) { return x; }
BPPSA_INLINE double widen(double x) { return x; }
BPPSA_INLINE float widen(BFloat16 x) { return as_float(uint32_t(x.bits) << 16); }
BPPSA_INLINE float widen(Float16 x) {
#ifdef __F16C__
  return _cvtsh_ss(x.bits);
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16;
  const uint32_t rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  // Exact for subnormals too: the product by 2^112 re-biases the exponent.
  return as_float(sign | as_bits(as_float(rest << 13) * 0x1p112f));
#endif
}

template <typename S>
BPPSA_INLINE S narrow(typename ComputeOf<S>::type x) {
  return x;
}
template <>
BPPSA_INLINE BFloat16 narrow<BFloat16>(float x) {
  const uint32_t bits = as_bits(x);
  if (x != x) return {uint16_t((bits >> 16) | 0x40)};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
template <>
BPPSA_INLINE Float16 narrow<Float16>(float x) {
#ifdef __F16C__
  return {_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)};
#else
  const uint32_t bits = as_bits(x);
  const uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return {uint16_t(sign | 0x7e00)};
  if (rest >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // 65520 and above round to infinity
  if (rest < 0x38800000) {
    // Subnormal in half precision: adding 0.5 aligns the last kept bit with float's own
    // last bit, so that the addition rounds to nearest even.
    return {uint16_t(sign | (as_bits(as_float(rest) + 0.5f) - 0x3f000000))};
  }
  return {uint16_t(sign | ((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13))};
#endif
}

// A type as an argument.
template <typename T>
struct Type {
  using type = T;
};

// Calls body(Type<S>{}), S the type of numbers that lie in memory as `storage` says.
template <class Body>
BPPSA_INLINE void with_storage(Storage storage, const Body& body) {
  switch (storage) {
    case Storage::f32:
      return body(Type<float>{});
    case Storage::f64:
      return body(Type<double>{});
    case Storage::bf16:
      return body(Type<BFloat16>{});
    case Storage::f16:
      return body(Type<Float16>{});
  }
}

// The same for kernels of float32 and float64 alone (operators/ refuses the others).
template <class Body>
BPPSA_INLINE void with_real(Storage storage, const Body& body) {
  storage == Storage::f64 ? body(Type<double>{}) : body(Type<float>{});
}

}  // namespace bppsa::BPPSA_ISA
