// Vectors in parts: rows shorter than a vector, several of which share one.
//
// Parts are put together in registers, never by way of memory or a mask: a load of what narrower
// stores have just written, or of part of what a masked one has, would wait for the cache.
#pragma once

#include "vec.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace bppsa::BPPSA_ISA {

template <typename T, int W>
BPPSA_INLINE Vec<T, W> join(Vec<T, W / 2> low, Vec<T, W / 2> high) {
  Vec<T, W> v;
#if defined(__AVX512F__)
  if constexpr (sizeof(v) == 64) {
    const __m512d wide = _mm512_castpd256_pd512((__m256d)low);
    return (Vec<T, W>)_mm512_insertf64x4(wide, (__m256d)high, 1);
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(v) == 32) return (Vec<T, W>)_mm256_set_m128d((__m128d)high, (__m128d)low);
#endif
  std::memcpy(&v, &low, sizeof(low));
  std::memcpy(reinterpret_cast<char*>(&v) + sizeof(low), &high, sizeof(high));
  return v;
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W / 2> low_half(Vec<T, W> v) {
  Vec<T, W / 2> half;
  std::memcpy(&half, &v, sizeof(half));
  return half;
}

template <typename T, int W>
BPPSA_INLINE Vec<T, W / 2> high_half(Vec<T, W> v) {
#if defined(__AVX512F__)
  if constexpr (sizeof(v) == 64) return (Vec<T, W / 2>)_mm512_extractf64x4_pd((__m512d)v, 1);
#endif
#if defined(__AVX__)
  if constexpr (sizeof(v) == 32) return (Vec<T, W / 2>)_mm256_extractf128_pd((__m256d)v, 1);
#endif
  Vec<T, W / 2> half;
  std::memcpy(&half, reinterpret_cast<const char*>(&v) + sizeof(half), sizeof(half));
  return half;
}

// The first n numbers at p, then zeros, without a load beyond them.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> load_first(const T* p, int64_t n) {
  if (n >= W) return load<T, W>(p);
  if constexpr (W > kMinWidth<T>) {
    const Vec<T, W / 2> zero = {};
    if (n <= W / 2) return join<T, W>(load_first<T, W / 2>(p, n), zero);
    return join<T, W>(load<T, W / 2>(p), load_first<T, W / 2>(p + W / 2, n - W / 2));
  } else {
    Vec<T, W> v = {};
    for (int64_t i = 0; i < n; ++i) v[i] = p[i];
    return v;
  }
}

// Stores the first n numbers of v: n a multiple of the least width, so that every piece that is
// stored is one that will be loaded, and less than W.
template <typename T, int W>
BPPSA_INLINE void store_whole_parts(T* p, Vec<T, W> v, int64_t n) {
  if constexpr (W > kMinWidth<T>) {
    const Vec<T, W / 2> low = low_half<T, W>(v);
    if (n < W / 2) return store_whole_parts<T, W / 2>(p, low, n);
    store<T, W / 2>(p, low);
    if (n > W / 2) store_whole_parts<T, W / 2>(p + W / 2, high_half<T, W>(v), n - W / 2);
  }
}

// R rows of W numbers in one vector, row after row.
template <typename T_, int W_, int R_>
struct Lanes {
  using T = T_;
  static constexpr int W = W_, R = R_, kAll = W * R;
  using V = Vec<T, kAll>;

  // part(r): row r, W numbers.
  template <class Part>
  BPPSA_INLINE static V gather(const Part& part) {
    if constexpr (R == 1) {
      return part(0);
    } else {
      using Half = Lanes<T, W, R / 2>;
      return join<T, kAll>(
          Half::gather(part),
          Half::gather([&](int r) __attribute__((always_inline)) { return part(r + R / 2); }));
    }
  }

  BPPSA_INLINE static V load(const T* p, int64_t ld) {
    return gather([&](int r)
                      __attribute__((always_inline)) { return BPPSA_ISA::load<T, W>(p + r * ld); });
  }

  // Rows of which only n numbers are there; zeros otherwise, and for null.
  BPPSA_INLINE static V load_first(const T* p, int64_t ld, int64_t n) {
    if (!p) return V{};
    return gather([&](int r) __attribute__((always_inline)) {
      return BPPSA_ISA::load_first<T, W>(p + r * ld, n);
    });
  }

  // The first `rows` of them.
  BPPSA_INLINE static void store(T* p, int64_t ld, V v, int rows = R) {
    if constexpr (R == 1) {
      BPPSA_ISA::store<T, W>(p, v);
    } else {
      using Half = Lanes<T, W, R / 2>;
      Half::store(p, ld, low_half<T, kAll>(v), rows);
      if (rows > R / 2) Half::store(p + R / 2 * ld, ld, high_half<T, kAll>(v), rows - R / 2);
    }
  }

  // Of each row the first n numbers, n at least 1.
  BPPSA_INLINE static void store_first(T* p, int64_t ld, V v, int64_t n) {
    if (n >= W) return store(p, ld, v);
    for (int r = 0; r < R; ++r)
      for (int64_t i = 0; i < n; ++i) p[r * ld + i] = v[r * W + i];
  }
};

// n numbers, over and over.
template <typename T, int W, int n>
BPPSA_INLINE Vec<T, W> repeat(const T* p) {
  if constexpr (n == W) {
    return load<T, W>(p);
#if defined(__AVX512F__)
  } else if constexpr (n * sizeof(T) == 16 && W * sizeof(T) == 64) {
    return (Vec<T, W>)_mm512_broadcast_f32x4((__m128)load<T, n>(p));
#endif
  } else if constexpr (n * sizeof(T) == 8) {
    int64_t bits;  // as an integer: numbers may be anything to a double
    std::memcpy(&bits, p, sizeof(bits));
    return (Vec<T, W>)splat<int64_t, W * sizeof(T) / 8>(bits);
  } else {
    const Vec<T, W / 2> half = repeat<T, W / 2, n>(p);
    return join<T, W>(half, half);
  }
}

// a0, a2, ..., b0, b2, ...
// (__builtin_shuffle here and below is GCC's alone: CMakeLists.txt asks for it.)
template <typename T, int W>
BPPSA_INLINE Vec<T, W> evens(Vec<T, W> a, Vec<T, W> b) {
  IntVec<T, W> even;
  for (int i = 0; i < W; ++i) even[i] = 2 * i;
  return __builtin_shuffle(a, b, even);
}

// a1, a3, ..., b1, b3, ...
template <typename T, int W>
BPPSA_INLINE Vec<T, W> odds(Vec<T, W> a, Vec<T, W> b) {
  IntVec<T, W> odd;
  for (int i = 0; i < W; ++i) odd[i] = 2 * i + 1;
  return __builtin_shuffle(a, b, odd);
}

// a0, b0, a1, b1, ... in two vectors.
template <typename T, int W>
BPPSA_INLINE void store_interleaved(T* p, Vec<T, W> a, Vec<T, W> b) {
  IntVec<T, W> low, high;
  for (int i = 0; i < W; ++i) low[i] = i / 2 + i % 2 * W, high[i] = low[i] + W / 2;
  if constexpr (W == 1) high[0] = 1;
  store<T, W>(p, __builtin_shuffle(a, b, low));
  store<T, W>(p + W, __builtin_shuffle(a, b, high));
}

// a0+a1, a2+a3, ..., b0+b1, ...
template <typename T, int W>
BPPSA_INLINE Vec<T, W> pair_sums(Vec<T, W> a, Vec<T, W> b) {
  return evens<T, W>(a, b) + odds<T, W>(a, b);
}

// The sum of each of four vectors.
template <typename T, int W>
BPPSA_INLINE Vec<T, 4> four_sums(const Vec<T, W> (&v)[4]) {
  if constexpr (W == 1) {
    return Vec<T, 4>{v[0][0], v[1][0], v[2][0], v[3][0]};
  } else if constexpr (W == 2) {
    return join<T, 4>(pair_sums<T, 2>(v[0], v[1]), pair_sums<T, 2>(v[2], v[3]));
  } else if constexpr (W == 4) {
    return pair_sums<T, 4>(pair_sums<T, 4>(v[0], v[1]), pair_sums<T, 4>(v[2], v[3]));
  } else {
    Vec<T, W / 2> halves[4];
    for (int i = 0; i < 4; ++i) halves[i] = sum_of_halves<T, W>(v[i]);
    return four_sums<T, W / 2>(halves);
  }
}

// W vectors of W numbers, transposed: in each round, neighbours become those that lay half a matrix
// apart.
template <typename T, int W>
BPPSA_INLINE void transpose(Vec<T, W> (&v)[W]) {
  IntVec<T, W> low, high;
  for (int i = 0; i < W; ++i) low[i] = i / 2 + i % 2 * W, high[i] = low[i] + W / 2;
  for (int round = 1; round < W; round *= 2) {
    Vec<T, W> next[W];
    for (int i = 0; i < W / 2; ++i) {
      next[2 * i] = __builtin_shuffle(v[i], v[i + W / 2], low);
      next[2 * i + 1] = __builtin_shuffle(v[i], v[i + W / 2], high);
    }
    for (int i = 0; i < W; ++i) v[i] = next[i];
  }
}

}  // namespace bppsa::BPPSA_ISA
