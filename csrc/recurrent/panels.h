// Matrices rearranged for padded tiles: each strip of tiles reads one contiguous piece, in order
// (rows a power of two apart would fight for the same places of a cache), and columns are filled up
// with zeros to whole vectors.
#pragma once

#include "../cpu/buffer.h"
#include "units.h"

namespace bppsa::BPPSA_ISA {

template <typename T>
constexpr int64_t panel_size(int64_t K, int64_t cols) {
  return K * whole_vectors<T>(cols);
}

// put(k, c0, n, to, step) for all pieces of all rows: columns c0 ... c0 + n - 1 of row k go to
// `to`, `step` apart.
template <typename T, class Put>
inline void for_each_piece(int64_t K, int64_t cols, T* panels, const Put& put) {
  constexpr int64_t W = kMaxWidth<T>;
  std::memset(panels, 0, panel_size<T>(K, cols) * sizeof(T));
  const Columns<T, W> columns(cols);
  for (int64_t first = 0; first < columns.vectors; first += columns.strip) {
    const int64_t n = min(columns.strip, columns.vectors - first), c0 = first * W;
    for (int64_t k = 0; k < K; ++k)
      put(k, c0, min(n * W, cols - c0), panels + c0 * K + k * n * W, 1);
  }
  if (columns.narrow > 1) {
    const int64_t c0 = columns.vectors * W, KP = columns.narrow, whole = K / KP * KP;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t at = k < whole ? k / KP * W + k % KP : (K / KP + k - whole) * W;
      put(k, c0, cols - c0, panels + c0 * K + at, KP);
    }
  }
}

// Column c of the matrix is the K numbers at column(c); null for zeros.
template <typename T, class Column>
inline void panels_by_columns(int64_t K, int64_t cols, const Column& column, T* panels) {
  for_each_piece<T>(K, cols, panels, [&](int64_t k, int64_t c0, int64_t n, T* to, int64_t step) {
    for (int64_t i = 0; i < n; ++i)
      if (const T* from = column(c0 + i)) to[i * step] = from[k];
  });
}

// Row k of the matrix is the `given` numbers at row(k), then zeros; null for zeros.
template <typename T, class Row>
inline void panels_by_rows(int64_t K, int64_t cols, int64_t given, const Row& row, T* panels) {
  for_each_piece<T>(K, cols, panels, [&](int64_t k, int64_t c0, int64_t n, T* to, int64_t step) {
    const T* from = row(k);
    n = min(n, given - c0);
    if (from)
      for (int64_t i = 0; i < n; ++i) to[i * step] = from[c0 + i];
  });
}

// A matrix (K x cols) in panels, that many rows will be multiplied by.
template <typename T>
class Multiplier {
 public:
  Multiplier(int64_t K, int64_t cols) : K_(K), columns_(cols), panels_(panel_size<T>(K, cols)) {}

  T* panels() { return panels_.data; }

  // out = rows * matrix + addend: n rows of K numbers, n rows of cols numbers, each kind its own
  // distance apart. The addend, if any, has rows of no more than `addend_cols` numbers.
  BPPSA_INLINE void multiply(int64_t n, const T* rows, int64_t ld_rows, const T* addend,
                             int64_t ld_addend, int64_t addend_cols, T* out, int64_t ld_out) const {
    for_each_tile(n, columns_, [&](auto& tile) __attribute__((always_inline)) {
      tile.clear();
      tile.multiply_add_panel(K_, rows, ld_rows, panels_.data);
      tile.sum();
      if (addend) tile.add_rows_of(addend_cols, addend, ld_addend);
      tile.store_rows(out, ld_out);
    });
  }

  // One row in line, where the caller knows at compile time that there is but one.
  BPPSA_INLINE void operator()(int64_t n, const T* rows, int64_t ld_rows, const T* addend,
                               int64_t ld_addend, int64_t addend_cols, T* out,
                               int64_t ld_out) const {
    if (__builtin_constant_p(n == 1) && n == 1)
      multiply(1, rows, ld_rows, addend, ld_addend, addend_cols, out, ld_out);
    else
      apart(n, rows, ld_rows, addend, ld_addend, addend_cols, out, ld_out);
  }

 private:
  __attribute__((noinline)) void apart(int64_t n, const T* rows, int64_t ld_rows, const T* addend,
                                       int64_t ld_addend, int64_t addend_cols, T* out,
                                       int64_t ld_out) const {
    multiply(n, rows, ld_rows, addend, ld_addend, addend_cols, out, ld_out);
  }

  int64_t K_;
  Columns<T, kMaxWidth<T>> columns_;
  Buffer<T> panels_;
};

}  // namespace bppsa::BPPSA_ISA
