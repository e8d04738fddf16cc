// Tile: MR x NV vectors of a product of rows, held in registers.
//
//   C[r][:] = sum_k A[r][k] * B[k][:] + addend       r in rows, B's rows contiguous
//
// The addend comes last: beside a large one, every earlier partial sum would be rounded to its
// last place (seen: 1.5 times PyTorch's error).
//
// Every dense product of the project has this form: a recurrent step over a group of
// samples (rows = samples), the composition of a Jacobian with a product so far (rows = the
// product's columns), and a matrix-vector step (one row). for_each_tile cuts rows x columns
// into tiles that fit the registers and calls the body, which multiplies, adds and stores.
//
// A last partial vector is laid over its neighbour: columns [n - W, n). The overlap is
// computed twice by the same operations, so both stores write the same bits. It follows
// that the destination must not be one of the operands.
#pragma once

#include "vec.h"

namespace bppsa::BPPSA_ISA {

template <typename T_, int W, int MR, int NV>
struct Tile {
  using T = T_;
  using V = Vec<T, W>;
  // Few accumulators leave the multiply-add latency bare: sum over k in KU independent parts.
  static constexpr int KU = MR * NV >= 8 ? 1 : MR * NV >= 4 ? 2 : 4;

  V acc[MR][NV];
  int64_t row;
  int64_t col[NV];

  BPPSA_INLINE void clear() {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = V{};
  }

  // One row for all.
  BPPSA_INLINE void add_row(const T* p) {
    for (int v = 0; v < NV; ++v) {
      const V x = load<T, W>(p + col[v]);
      for (int r = 0; r < MR; ++r) acc[r][v] += x;
    }
  }

  BPPSA_INLINE void add_rows(const T* p, int64_t ld) {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] += load<T, W>(p + (row + r) * ld + col[v]);
  }

  BPPSA_INLINE void multiply_add(int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb) {
    const T* a_row[MR];
    for (int r = 0; r < MR; ++r) a_row[r] = a + (row + r) * lda;
    int64_t k = 0;
    if constexpr (KU > 1) {
      V part[KU][MR][NV] = {};
      for (; k + KU <= K; k += KU)
        for (int u = 0; u < KU; ++u) step(part[u], a_row, k + u, b, ldb);
      for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) {
          if constexpr (KU == 2)
            acc[r][v] += part[0][r][v] + part[1][r][v];
          else
            acc[r][v] += (part[0][r][v] + part[1][r][v]) + (part[2][r][v] + part[3][r][v]);
        }
    }
    for (; k < K; ++k) step(acc, a_row, k, b, ldb);
  }

  template <class F>
  BPPSA_INLINE void map(const F& f) {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = f(acc[r][v]);
  }

  BPPSA_INLINE void store_rows(T* p, int64_t ld) const {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) store<T, W>(p + (row + r) * ld + col[v], acc[r][v]);
  }

 private:
  BPPSA_INLINE void step(V (&sum)[MR][NV], const T* const (&a)[MR], int64_t k, const T* b,
                         int64_t ldb) const {
    V x[NV];
    for (int v = 0; v < NV; ++v) x[v] = load<T, W>(b + k * ldb + col[v]);
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) sum[r][v] += a[r][k] * x[v];
  }
};

// Rows of a tile by its vectors per row: accumulators, NV operands and a broadcast fit the
// register file.
constexpr int tile_rows(int nv) {
#if BPPSA_VECTOR_REGISTERS >= 32
  return nv == 1 ? 8 : 4;
#else
  return nv == 1 ? 8 : nv <= 3 ? 4 : 2;
#endif
}

template <typename T, int W, int MR, int NV, class Body>
BPPSA_INLINE void run_tile(int64_t row, int64_t first, int64_t cols, const Body& body) {
  Tile<T, W, MR, NV> tile;
  tile.row = row;
  for (int v = 0; v < NV; ++v) tile.col[v] = min((first + v) * W, cols - W);
  body(tile);
}

template <typename T, int W, int NV, class Body>
BPPSA_INLINE void run_strip(int64_t rows, int64_t first, int64_t cols, const Body& body) {
  constexpr int MR = tile_rows(NV);
  int64_t r = 0;
  for (; r + MR <= rows; r += MR) run_tile<T, W, MR, NV>(r, first, cols, body);
  if constexpr (MR > 4)
    if (r + 4 <= rows) run_tile<T, W, 4, NV>(r, first, cols, body), r += 4;
  if constexpr (MR > 2)
    if (r + 2 <= rows) run_tile<T, W, 2, NV>(r, first, cols, body), r += 2;
  if (r < rows) run_tile<T, W, 1, NV>(r, first, cols, body);
}

// Calls body(tile) for tiles that cover rows x cols. W <= cols.
template <typename T, int W, class Body>
BPPSA_INLINE void for_each_tile(int64_t rows, int64_t cols, const Body& body) {
  const int64_t vectors = ceil_div(cols, W);
  const int64_t strip = ceil_div(vectors, ceil_div(vectors, 4));
  for (int64_t v = 0; v < vectors; v += strip) {
    switch (min(strip, vectors - v)) {
      case 1:
        run_strip<T, W, 1>(rows, v, cols, body);
        break;
      case 2:
        run_strip<T, W, 2>(rows, v, cols, body);
        break;
      case 3:
        run_strip<T, W, 3>(rows, v, cols, body);
        break;
      default:
        run_strip<T, W, 4>(rows, v, cols, body);
    }
  }
}

// out = rows * matrix + addend: rows (n x K), matrix (K x cols), out (n x cols), all contiguous;
// addend (n x cols) with its rows ld_addend apart, or null for none.
template <typename T>
using RowsTimesMatrix = void (*)(int64_t n, int64_t K, int64_t cols, const T* rows, const T* matrix,
                                 const T* addend, int64_t ld_addend, T* out);

template <typename T, int W>
void rows_times_matrix_of_width(int64_t n, int64_t K, int64_t cols, const T* rows, const T* matrix,
                                const T* addend, int64_t ld_addend, T* out) {
  for_each_tile<T, W>(n, cols, [&](auto& tile) __attribute__((always_inline)) {
    tile.clear();
    tile.multiply_add(K, rows, K, matrix, cols);
    if (addend) tile.add_rows(addend, ld_addend);
    tile.store_rows(out, cols);
  });
}

// Chosen once a scan: the one heavy template is then compiled once a width, whatever the
// number of cells and algorithms that call it.
template <typename T>
inline RowsTimesMatrix<T> rows_times_matrix(int64_t cols) {
  RowsTimesMatrix<T> chosen = nullptr;
  with_width<T>(best_width<T>(cols), [&](auto width) {
    chosen = rows_times_matrix_of_width<T, decltype(width)::value>;
  });
  return chosen;
}

}  // namespace bppsa::BPPSA_ISA
