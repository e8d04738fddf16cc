// Matrices rearranged for padded tiles: each strip of tiles reads one contiguous piece, in order
// (rows a power of two apart would fight for the same places of a cache), and columns are filled up
// with zeros to whole vectors.
#pragma once

#include "buffer.h"
#include "tile.h"
#include "unit_blocks.h"

namespace bppsa::BPPSA_ISA {

// to[k * step + i] = from[i][k], k below K, for the columns of a vector; zeros for a null column.
// Heavy: compiled once a level (cpu/levels/products.cpp).
template <typename T>
void transpose_columns(int64_t K, const T* const* from, T* to, int64_t step) {
  constexpr int W = kMaxWidth<T>;
  using V = Vec<T, W>;
  int64_t k = 0;
  for (; k + W <= K; k += W) {
    V v[W];
    for (int i = 0; i < W; ++i) v[i] = from[i] ? load<T, W>(from[i] + k) : V{};
    transpose<T, W>(v);
    for (int i = 0; i < W; ++i) store<T, W>(to + (k + i) * step, v[i]);
  }
  for (; k < K; ++k)
    for (int i = 0; i < W; ++i) to[k * step + i] = from[i] ? from[i][k] : T(0);
}
extern template void transpose_columns<float>(int64_t, const float* const*, float*, int64_t);
extern template void transpose_columns<double>(int64_t, const double* const*, double*, int64_t);

// The same for the columns c0, c0 + 1, … of `cols`: K numbers at column(c), zeros where it is null.
template <typename T, class Column>
inline void rows_of_columns(int64_t K, int64_t c0, int64_t cols, const Column& column, T* to,
                            int64_t step) {
  const T* from[kMaxWidth<T>];
  for (int i = 0; i < kMaxWidth<T>; ++i) from[i] = c0 + i < cols ? column(c0 + i) : nullptr;
  transpose_columns<T>(K, from, to, step);
}

// strip(first, n, panel) for the strips of tiles, of vectors `first` to first + n - 1.
template <typename T, class Strip>
inline void for_each_strip(int64_t K, const Columns<T, kMaxWidth<T>>& columns, T* panels,
                           const Strip& strip) {
  for (int64_t first = 0; first < columns.vectors; first += columns.strip)
    strip(first, min(columns.strip, columns.vectors - first), panels + first * kMaxWidth<T> * K);
}

// The last, narrow panel, if there is one; at(k, c): the numbers of the matrix.
template <typename T, class At>
inline void fill_narrow(int64_t K, const Columns<T, kMaxWidth<T>>& columns, T* panels,
                        const At& at) {
  constexpr int64_t W = kMaxWidth<T>;
  if (columns.narrow == 1) return;
  T* panel = panels + columns.vectors * W * K;
  std::memset(panel, 0, K * W * sizeof(T));
  const int64_t KP = columns.narrow, whole = K / KP * KP;
  for (int64_t k = 0; k < K; ++k) {
    T* to = panel + (k < whole ? k / KP * W + k % KP : (K / KP + k - whole) * W);
    for (int64_t c = columns.vectors * W; c < columns.cols; ++c, to += KP) *to = at(k, c);
  }
}

// Column c of the matrix is the K numbers at column(c); null for zeros.
template <typename T, class Column>
inline void panels_by_columns(int64_t K, int64_t cols, const Column& column, T* panels) {
  constexpr int64_t W = kMaxWidth<T>;
  const Columns<T, W> columns(cols);
  for_each_strip<T>(K, columns, panels, [&](int64_t first, int64_t n, T* panel) {
    for (int64_t v = 0; v < n; ++v)
      rows_of_columns<T>(K, (first + v) * W, cols, column, panel + v * W, n * W);
  });
  fill_narrow<T>(K, columns, panels, [&](int64_t k, int64_t c) {
    const T* from = column(c);
    return from ? from[k] : T(0);
  });
}

// Row k of the matrix is the `given` numbers at row(k), then zeros; null for zeros.
template <typename T, class Row>
inline void panels_by_rows(int64_t K, int64_t cols, int64_t given, const Row& row, T* panels) {
  constexpr int64_t W = kMaxWidth<T>;
  const Columns<T, W> columns(cols);
  for_each_strip<T>(K, columns, panels, [&](int64_t first, int64_t n, T* panel) {
    const int64_t there = max(int64_t(0), min(n * W, given - first * W));
    for (int64_t k = 0; k < K; ++k, panel += n * W) {
      const T* from = row(k);
      const int64_t taken = from ? there : 0;
      if (taken) std::memcpy(panel, from + first * W, taken * sizeof(T));
      std::memset(panel + taken, 0, (n * W - taken) * sizeof(T));
    }
  });
  fill_narrow<T>(K, columns, panels, [&](int64_t k, int64_t c) {
    const T* from = c < given ? row(k) : nullptr;
    return from ? from[c] : T(0);
  });
}

// out = rows * matrix + addend, the matrix (K x cols) in panels: n rows of K numbers, n rows of
// cols numbers. The addend, if any, has rows of no more than `addend_cols` numbers.
template <typename T>
BPPSA_INLINE void multiply_by_panels_in_line(int64_t n, int64_t K,
                                             const Columns<T, kMaxWidth<T>>& columns,
                                             ConstRows<T> rows, const T* panels,
                                             ConstRows<T> addend, int64_t addend_cols,
                                             Rows<T> out) {
  for_each_tile(n, columns, [&](auto& tile) __attribute__((always_inline)) {
    tile.clear();
    tile.multiply_add_panel(K, rows, panels);
    tile.sum();
    if (addend) tile.add_rows_of(addend_cols, addend);
    tile.store_rows(out);
  });
}

// Heavy: compiled once a level (cpu/levels/products.cpp).
template <typename T>
void multiply_by_panels(int64_t n, int64_t K, const Columns<T, kMaxWidth<T>>& columns,
                        ConstRows<T> rows, const T* panels, ConstRows<T> addend,
                        int64_t addend_cols, Rows<T> out) {
  multiply_by_panels_in_line(n, K, columns, rows, panels, addend, addend_cols, out);
}
#define BPPSA_MULTIPLY_BY_PANELS(T)                                                      \
  template void multiply_by_panels<T>(int64_t, int64_t, const Columns<T, kMaxWidth<T>>&, \
                                      ConstRows<T>, const T*, ConstRows<T>, int64_t, Rows<T>)
extern BPPSA_MULTIPLY_BY_PANELS(float);
extern BPPSA_MULTIPLY_BY_PANELS(double);

// A matrix (K x cols) in panels, that many rows will be multiplied by.
template <typename T>
class Multiplier {
 public:
  Multiplier(int64_t K, int64_t cols)
      : K_(K), columns_(cols), panels_(K * whole_vectors<T>(cols)) {}

  T* panels() { return panels_.data; }

  // As multiply_by_panels. One row in line, where the caller knows at compile time that there is
  // but one.
  BPPSA_INLINE void operator()(int64_t n, ConstRows<T> rows, ConstRows<T> addend,
                               int64_t addend_cols, Rows<T> out) const {
    if (__builtin_constant_p(n == 1) && n == 1)
      multiply_by_panels_in_line(1, K_, columns_, rows, panels_.data, addend, addend_cols, out);
    else
      multiply_by_panels(n, K_, columns_, rows, panels_.data, addend, addend_cols, out);
  }

 private:
  int64_t K_;
  Columns<T, kMaxWidth<T>> columns_;
  Buffer<T> panels_;
};

}  // namespace bppsa::BPPSA_ISA
