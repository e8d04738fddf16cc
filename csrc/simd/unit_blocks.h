// The H units of a state as vectors: as many of the widest as fit, then at most one of each
// narrower. H is rounded up to whole vectors of the least width; what is added stays zero.
//
// Inside the kernels a state is always cut in these blocks, so that whatever is loaded was stored
// in one piece: a load that spans two recent stores waits for both to reach the cache.
#pragma once

#include "lanes.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
constexpr int64_t padded_units(int64_t H) {
  return (H + kMinWidth<T> - 1) & -int64_t(kMinWidth<T>);
}

// Rounded up to whole vectors of the widest kind.
template <typename T>
constexpr int64_t whole_vectors(int64_t n) {
  return (n + kMaxWidth<T> - 1) & -int64_t(kMaxWidth<T>);
}

// body(lanes, row, k) for all blocks of all rows: units k and on of the rows that share a vector,
// from `row` on. Lanes says how many of each (lanes.h).
template <typename T, int W = kMaxWidth<T>, class Body>
BPPSA_INLINE void for_each_block(int64_t rows, int64_t padded, const Body& body, int64_t k = 0) {
  constexpr int R = kMaxWidth<T> / W;
  const int64_t end = padded & -int64_t(W);
  if (k < end) {
    int64_t row = 0;
    if constexpr (R > 1) {
      for (; row + R <= rows; row += R) body(Lanes<T, W, R>{}, row, k);
    }
    for (; row < rows; ++row)
      for (int64_t i = k; i < end; i += W) body(Lanes<T, W, 1>{}, row, i);
  }
  if constexpr (W > kMinWidth<T>)
    if (end < padded) for_each_block<T, W / 2>(rows, padded, body, end);
}

// to[0 : H] = from[0 : H], where `from` has padded units.
template <typename T>
BPPSA_INLINE void copy_units(int64_t H, const T* from, T* to) {
  const auto copy = [&](auto lanes, int64_t, int64_t k) __attribute__((always_inline)) {
    constexpr int W = decltype(lanes)::W;
    if (k + W <= H)
      store<T, W>(to + k, load<T, W>(from + k));
    else
      for (int64_t i = k; i < H; ++i) to[i] = from[i];
  };
  for_each_block<T>(1, padded_units<T>(H), copy);
}

// `to`, of padded units, = from[0 : H] and zeros; null stands for zeros.
template <typename T>
inline void copy_padded(int64_t H, const T* from, T* to) {
  for (int64_t i = 0; i < padded_units<T>(H); ++i) to[i] = from && i < H ? from[i] : T(0);
}

// Zeros for the units that were added to H, in `blocks` blocks of a row. In the results of products
// they are zero by zero weights, but for infinity times zero.
template <typename T>
inline void clear_padding(int64_t rows, int blocks, int64_t H, T* data, int64_t ld) {
  const int64_t padded = padded_units<T>(H);
  if (padded == H) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int block = 0; block < blocks; ++block)
      for (int64_t i = H; i < padded; ++i) data[r * ld + block * padded + i] = 0;
}

}  // namespace bppsa::BPPSA_ISA
