// Vec<T, W>: W numbers in one register, by the compiler's vector extension, so that each
// kernel is written once and is SSE, AVX2, AVX-512 or NEON by its compile flags.
#pragma once

#include <cstring>

#include "isa.h"

namespace bppsa::BPPSA_ISA {

template <typename T, int W>
struct VecOf {
  typedef T type __attribute__((vector_size(W * sizeof(T))));
};
template <typename T, int W>
using Vec = typename VecOf<T, W>::type;

template <typename T>
constexpr int kMaxWidth = BPPSA_VECTOR_BYTES / int(sizeof(T));
template <typename T>
constexpr int kMinWidth = 16 / int(sizeof(T));

template <typename T>
struct IntOf;
template <>
struct IntOf<float> {
  using type = int32_t;
};
template <>
struct IntOf<double> {
  using type = int64_t;
};

// As many integers of the same size: a mask, indices, the bits of numbers.
template <typename T, int W>
using IntVec = Vec<typename IntOf<T>::type, W>;

template <typename T, int W>
BPPSA_INLINE Vec<T, W> load(const T* p) {
  Vec<T, W> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T, int W>
BPPSA_INLINE void store(T* p, Vec<T, W> v) {
  std::memcpy(p, &v, sizeof(v));
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W> splat(T x) {
  return Vec<T, W>{} + x;
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W / 2> sum_of_halves(Vec<T, W> v) {
  Vec<T, W / 2> lo, hi;
  std::memcpy(&lo, &v, sizeof(lo));
  std::memcpy(&hi, reinterpret_cast<const char*>(&v) + sizeof(lo), sizeof(hi));
  return lo + hi;
}

template <typename T, int W>
BPPSA_INLINE T sum(Vec<T, W> v) {
  if constexpr (W == 1)
    return v[0];
  else
    return sum<T, W / 2>(sum_of_halves<T, W>(v));
}

// Whether the machine works on 64 bytes as fast as on 32. AMD's family 19h (Zen 4) does it in two
// halves.
inline bool whole_64_bytes() {
#if BPPSA_VECTOR_BYTES == 64
  static const bool whole = !__builtin_cpu_is("amdfam19h");
  return whole;
#else
  return false;
#endif
}

// The width for rows of `n` numbers: the least work in vectors, ties to the wider. A last partial
// vector is laid over the one before it (see Tile), so only W <= n will do.
template <typename T>
inline int best_width(int64_t n) {
  int best = 1;
  int64_t best_cost = INT64_MAX;
  const int64_t unit_of_64_bytes = whole_64_bytes() ? 9 : 15;
  for (int w = 1; w <= kMaxWidth<T>; w *= w == 1 ? kMinWidth<T> : 2) {
    if (w > n) break;
    const int64_t unit = w * sizeof(T) > 32 ? unit_of_64_bytes : 8;
    const int64_t cost = ceil_div(n, w) * unit;
    if (cost <= best_cost) best = w, best_cost = cost;
  }
  return best;
}

// A number known at compile time, as an argument.
template <int N>
struct Constant {
  static constexpr int value = N;
};

// Calls body(i, width) for all of n numbers, by vectors and then one by one.
template <typename T, class Body>
BPPSA_INLINE void for_each_vector(int64_t n, const Body& body) {
  constexpr int W = kMaxWidth<T>;
  int64_t i = 0;
  for (; i + W <= n; i += W) body(i, Constant<W>{});
  for (; i < n; ++i) body(i, Constant<1>{});
}

// Calls body(width) with width a compile-time constant; `w` must come from best_width.
template <typename T, int W = kMaxWidth<T>, class Body>
BPPSA_INLINE void with_width(int w, const Body& body) {
  if constexpr (W > 1)
    if (w < W) return with_width<T, (W > kMinWidth<T> ? W / 2 : 1)>(w, body);
  body(Constant<W>{});
}

}  // namespace bppsa::BPPSA_ISA
