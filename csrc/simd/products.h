// Dense products: rows times a matrix, a matrix times a vector, sums of outer products.
#pragma once

#include "tile.h"

namespace bppsa::BPPSA_ISA {

// out = rows * matrix + addend: n rows of K numbers, matrix K x cols, n rows of cols numbers; each
// kind of rows its own distance apart. Null addend for none.
template <typename T>
using MultiplyRows = void (*)(int64_t n, int64_t K, int64_t cols, const T* rows, int64_t ld_rows,
                              const T* matrix, const T* addend, int64_t ld_addend, T* out,
                              int64_t ld_out);

template <typename T, int W>
void multiply_rows_of_width(int64_t n, int64_t K, int64_t cols, const T* rows, int64_t ld_rows,
                            const T* matrix, const T* addend, int64_t ld_addend, T* out,
                            int64_t ld_out) {
  const Columns<T, W, false> columns(cols);
  for_each_tile(n, columns, [&](auto& tile) __attribute__((always_inline)) {
    tile.clear();
    tile.multiply_add(K, rows, ld_rows, matrix, cols);
    if (addend) tile.add_rows(addend, ld_addend);
    tile.store_rows(out, ld_out);
  });
}

// Chosen once a scan: the one heavy template is then compiled once a width, whatever the
// number of cells and algorithms that call it.
template <typename T>
inline MultiplyRows<T> multiply_rows(int64_t cols) {
  MultiplyRows<T> chosen = nullptr;
  with_width<T>(best_width<T>(cols),
                [&](auto width) { chosen = multiply_rows_of_width<T, decltype(width)::value>; });
  return chosen;
}

// Contiguous rows times a contiguous matrix.
template <typename T>
struct RowsTimesMatrix {
  MultiplyRows<T> multiply;

  void operator()(int64_t n, int64_t K, int64_t cols, const T* rows, const T* matrix,
                  const T* addend, int64_t ld_addend, T* out) const {
    multiply(n, K, cols, rows, K, matrix, addend, ld_addend, out, cols);
  }
};

template <typename T>
inline RowsTimesMatrix<T> rows_times_matrix(int64_t cols) {
  return {multiply_rows<T>(cols)};
}

// out[r] = <m[r][:], g> + u[r]: four rows at a time, m read once in order.
template <typename T, int W>
void matrix_times_vector_of_width(int64_t H, const T* m, int64_t ld, const T* g, const T* u,
                                  T* out) {
  const auto rows = [&](auto count, int64_t r) __attribute__((always_inline)) {
    constexpr int R = decltype(count)::value;
    Vec<T, W> acc[R] = {};
    int64_t c = 0;
    for (; c + W <= H; c += W)
      for (int i = 0; i < R; ++i) acc[i] += load<T, W>(m + (r + i) * ld + c) * load<T, W>(g + c);
    T tail[R] = {};
    for (; c < H; ++c)
      for (int i = 0; i < R; ++i) tail[i] += m[(r + i) * ld + c] * g[c];
    for (int i = 0; i < R; ++i) out[r + i] = (sum<T, W>(acc[i]) + tail[i]) + u[r + i];
  };
  int64_t r = 0;
  for (; r + 4 <= H; r += 4) rows(Constant<4>{}, r);
  for (; r < H; ++r) rows(Constant<1>{}, r);
}

template <typename T>
using MatrixTimesVector = void (*)(int64_t H, const T* m, int64_t ld, const T* g, const T* u,
                                   T* out);

// Sums can't overlap as a Tile's columns do: the width that leaves the shortest scalar tail.
template <typename T>
inline MatrixTimesVector<T> choose_matrix_times_vector(int64_t H) {
  int best = 1;
  for (int w = 16 / int(sizeof(T)); w <= kMaxWidth<T>; w *= 2)
    if (H / w + H % w <= H / best + H % best) best = w;
  MatrixTimesVector<T> chosen = nullptr;
  with_width<T>(
      best, [&](auto width) { chosen = matrix_times_vector_of_width<T, decltype(width)::value>; });
  return chosen;
}

// Rows (step, sample) of a matrix: `step` numbers between steps, `sample` between samples.
template <typename T>
struct Block {
  const T* data;
  int64_t step, sample;
};

// sum (M x N, rows N apart) += a^T d, over steps x samples rows; a has M numbers a row, d has N,
// N a multiple of the widest vector. Rows go through in blocks that stay in the first-level cache.
template <typename T>
void add_transposed_product(int64_t steps, int64_t samples, int64_t M, int64_t N, Block<T> a,
                            Block<T> d, T* sum) {
  constexpr int64_t kRows = 128;
  const int64_t block_samples = min(samples, kRows);
  const int64_t block_steps = max(int64_t(1), kRows / block_samples);
  for (int64_t s0 = 0; s0 < steps; s0 += block_steps)
    for (int64_t b0 = 0; b0 < samples; b0 += block_samples) {
      const int64_t S = min(block_steps, steps - s0), B = min(block_samples, samples - b0);
      const T* a0 = a.data + s0 * a.step + b0 * a.sample;
      const T* d0 = d.data + s0 * d.step + b0 * d.sample;
      for_each_tile(
          M, Columns<T, kMaxWidth<T>, false>(N), [&](auto& tile) __attribute__((always_inline)) {
            tile.clear();
            for (int64_t s = 0; s < S; ++s)
              tile.multiply_add_transposed(B, a0 + s * a.step, a.sample, d0 + s * d.step, d.sample);
            tile.add_rows(sum, N);
            tile.store_rows(sum, N);
          });
    }
}

// out[r][i] = <rows[r], matrix[i]>, K numbers each; few i.
template <typename T, int W>
void dot_rows(int64_t n, int64_t K, int64_t I, const T* rows, int64_t ld, const T* matrix, T* out) {
  for (int64_t r = 0; r < n; ++r)
    for (int64_t i = 0; i < I; ++i) {
      const T *a = rows + r * ld, *b = matrix + i * K;
      Vec<T, W> part = {};
      int64_t k = 0;
      for (; k + W <= K; k += W) part += load<T, W>(a + k) * load<T, W>(b + k);
      T tail = 0;
      for (; k < K; ++k) tail += a[k] * b[k];
      out[r * I + i] = sum<T, W>(part) + tail;
    }
}

}  // namespace bppsa::BPPSA_ISA
