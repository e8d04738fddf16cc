// Units of a row by whole vectors, and what is left as part of one.
#pragma once

#include "lanes.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
struct Whole {
  static constexpr int W = kMaxWidth<T>;
  BPPSA_INLINE Vec<T, W> load(const T* p) const { return BPPSA_ISA::load<T, W>(p); }
  BPPSA_INLINE void store(T* p, Vec<T, W> v) const { BPPSA_ISA::store<T, W>(p, v); }
  BPPSA_INLINE Vec<T, W> only(Vec<T, W> v) const { return v; }
  // Which bytes are not 0.
  BPPSA_INLINE IntVec<T, W> mask(const uint8_t* p) const {
    IntVec<T, W> set;
    for (int i = 0; i < W; ++i) set[i] = p[i] ? -1 : 0;
    return set;
  }
};

// The first n; the others are loaded as zeros.
template <typename T>
struct Part {
  static constexpr int W = kMaxWidth<T>;
  int64_t n;
  BPPSA_INLINE Vec<T, W> load(const T* p) const { return load_first<T, W>(p, n); }
  BPPSA_INLINE void store(T* p, Vec<T, W> v) const {
    for (int64_t i = 0; i < n; ++i) p[i] = v[i];
  }
  BPPSA_INLINE Vec<T, W> only(Vec<T, W> v) const {
    for (int64_t i = n; i < W; ++i) v[i] = 0;
    return v;
  }
  BPPSA_INLINE IntVec<T, W> mask(const uint8_t* p) const {
    IntVec<T, W> set{};
    for (int64_t i = 0; i < n; ++i) set[i] = p[i] ? -1 : 0;
    return set;
  }
};

// body(units, k), where `units` says how numbers from k on are loaded and stored.
template <typename T, class Body>
BPPSA_INLINE void for_each_unit(int64_t n, const Body& body) {
  constexpr int W = kMaxWidth<T>;
  int64_t k = 0;
  for (; k + W <= n; k += W) body(Whole<T>{}, k);
  if (k < n) body(Part<T>{n - k}, k);
}

}  // namespace bppsa::BPPSA_ISA
