// Dense products: rows times a matrix, a matrix times a vector, sums of outer products.
#pragma once

#include "buffer.h"
#include "halves.h"
#include "tile.h"

namespace bppsa::BPPSA_ISA {

// out = rows * matrix + addend: n rows of K numbers, matrix K x cols, n rows of cols numbers. Null
// addend for none.
template <typename T>
using MultiplyRows = void (*)(int64_t n, int64_t K, int64_t cols, ConstRows<T> rows,
                              const T* matrix, ConstRows<T> addend, Rows<T> out);

template <typename T, int W>
void multiply_rows_of_width(int64_t n, int64_t K, int64_t cols, ConstRows<T> rows, const T* matrix,
                            ConstRows<T> addend, Rows<T> out) {
  // A sum of sums: in one of 384 numbers the last are rounded as the whole is, which is 2.6 times
  // PyTorch's error.
  constexpr int64_t kBlock = 64;
  const Columns<T, W, false> columns(cols);
  for_each_tile(n, columns, [&](auto& tile) __attribute__((always_inline)) {
    int64_t k = 0;
    do {
      const int64_t now = min(kBlock, K - k);
      tile.clear();
      tile.multiply_add(now, {rows.at(0, k), rows.ld}, {matrix + k * cols, cols});
      if (k > 0) tile.add_rows({out.data, out.ld});
      k += now;
      if (addend && k == K) tile.add_rows(addend);
      tile.store_rows(out);
    } while (k < K);
  });
}

// Chosen once a scan. Heavy: compiled once a level (cpu/levels/products.cpp), whatever the number
// of cells and algorithms that multiply.
template <typename T>
MultiplyRows<T> multiply_rows(int64_t cols) {
  MultiplyRows<T> chosen = nullptr;
  with_width<T>(best_width<T>(cols),
                [&](auto width) { chosen = multiply_rows_of_width<T, decltype(width)::value>; });
  return chosen;
}

extern template MultiplyRows<float> multiply_rows<float>(int64_t);
extern template MultiplyRows<double> multiply_rows<double>(int64_t);

// Rows times an S x S matrix, all contiguous: out = rows * matrix + addend, which is one row for
// all, or null.
template <typename T>
struct SquareProduct {
  const int64_t S;
  const MultiplyRows<T> multiply;

  explicit SquareProduct(int64_t S) : S(S), multiply(multiply_rows<T>(S)) {}

  void operator()(int64_t n, const T* rows, const T* matrix, const T* addend, T* out) const {
    multiply(n, S, S, {rows, S}, matrix, {addend, 0}, {out, S});
  }
};

// out[r] = <m[r], g> + u[r], K numbers each, for n rows, K at least W; null u for none. Four rows
// at a time, m read once in order. Of a row's last partial vector the numbers before it count as
// zero, as g's do; kWhole: K has none. `next`, if not null, is n x K contiguous numbers that are
// asked for meanwhile.
template <typename S, typename T, int W, bool kWhole>
void matrix_times_vector_of_width(int64_t n, int64_t K, ConstRows<S> m, const T* g, const T* u,
                                  T* out, const S* next) {
  const int64_t rest = K % W;
  IntVec<T, W> in_rest{};
  for (int i = 0; i < W; ++i) in_rest[i] = i >= W - rest ? -1 : 0;
  const auto last = [&](Vec<T, W> v) __attribute__((always_inline)) {
    return (Vec<T, W>)((IntVec<T, W>)v & in_rest);
  };
  const auto add_rows = [&](auto& acc, int64_t r) __attribute__((always_inline)) {
    constexpr int R = sizeof(acc) / sizeof(acc[0]);
    for (int64_t c = 0; c + W <= K; c += W)
      for (int i = 0; i < R; ++i) acc[i] += widen_all<W>(m[r + i] + c) * load<T, W>(g + c);
    if constexpr (!kWhole)
      for (int i = 0; i < R; ++i)
        acc[i] += last(widen_all<W>(m[r + i] + K - W)) * last(load<T, W>(g + K - W));
    if (next) prefetch_to_read(next + r * K, R * K);
  };
  int64_t r = 0;
  for (; r + 4 <= n; r += 4) {
    Vec<T, W> acc[4] = {};
    add_rows(acc, r);
    const Vec<T, 4> sums = four_sums<T, W>(acc);
    store<T, 4>(out + r, u ? sums + load<T, 4>(u + r) : sums);
  }
  for (; r < n; ++r) {
    Vec<T, W> acc[1] = {};
    add_rows(acc, r);
    const T product = sum<T, W>(acc[0]);
    out[r] = u ? product + u[r] : product;
  }
}

template <typename S, typename T = typename ComputeOf<S>::type>
using MatrixTimesVector = void (*)(int64_t n, int64_t K, ConstRows<S> m, const T* g, const T* u,
                                   T* out, const S* next);

template <typename S, typename T = typename ComputeOf<S>::type>
inline MatrixTimesVector<S> matrix_times_vector(int64_t K) {
  MatrixTimesVector<S> chosen = nullptr;
  with_width<T>(best_width<T>(K), [&](auto width) {
    constexpr int W = decltype(width)::value;
    chosen = K % W ? matrix_times_vector_of_width<S, T, W, false>
                   : matrix_times_vector_of_width<S, T, W, true>;
  });
  return chosen;
}

// sum (M x N, rows N apart) += a^T d, over steps x samples rows; a has M numbers a row, d has N,
// N a multiple of the widest vector. Rows go through in blocks that stay in the first-level cache;
// of d the columns of a strip of tiles side by side, where they are read several times: rows that
// lie a power of two apart, and far, fight for the same places there.
// (Compiled beside its callers: in a file of its own it knew less of its arguments, and a layer's
// backward took 7 % longer.)
template <typename T>
void add_transposed_product(int64_t steps, int64_t samples, int64_t M, int64_t N,
                            StepRows<const T> a, StepRows<const T> d, T* sum) {
  constexpr int64_t kRows = 128, kStrip = kTileVectors * kMaxWidth<T>;
  const int64_t block_samples = min(samples, kRows);
  const int64_t block_steps = max(int64_t(1), kRows / block_samples);
  const bool packs = M >= 16 * kTileRows && N * int64_t(sizeof(T)) >= 4096;
  const Buffer<T> packed(packs ? kRows * kStrip : 0);
  for (int64_t s0 = 0; s0 < steps; s0 += block_steps)
    for (int64_t b0 = 0; b0 < samples; b0 += block_samples) {
      const int64_t end = min(s0 + block_steps, steps), B = min(block_samples, samples - b0);
      int64_t column = -1;  // of the strip that is packed
      for_each_tile(
          M, Columns<T, kMaxWidth<T>, false>(N), [&](auto& tile) __attribute__((always_inline)) {
            if (packs && tile.col[0] != column) {
              column = tile.col[0];
              const int64_t width = min(kStrip, N - column);
              T* to = packed.data;
              for (int64_t s = s0; s < end; ++s)
                for (int64_t r = 0; r < B; ++r, to += kStrip)
                  std::memcpy(to, d.at(s, b0)[r] + column, width * sizeof(T));
            }
            tile.clear();
            for (int64_t s = s0; s < end; ++s) {
              const ConstRows<T> rows =
                  packs ? ConstRows<T>{packed.data + (s - s0) * B * kStrip - column, kStrip}
                        : d.at(s, b0);
              tile.multiply_add_transposed(B, a.at(s, b0), rows);
            }
            tile.add_rows({sum, N});
            tile.store_rows({sum, N});
          });
    }
}

}  // namespace bppsa::BPPSA_ISA
