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

#include "buffer.h"
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
  int64_t first;  // number of its first vector, in the order of the panels of a matrix
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

  // B in panels: what the tile reads lies in one piece, see Panels.
  BPPSA_INLINE void multiply_add_panel(int64_t K, const T* a, int64_t lda, const T* panels) {
    const T* panel = panels + first * W * K;
    multiply_add_with(K, a, lda, [&](int64_t k, int v) { return panel + (k * NV + v) * W; });
  }

  BPPSA_INLINE void multiply_add(int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb) {
    multiply_add_with(K, a, lda, [&](int64_t k, int v) { return b + k * ldb + col[v]; });
  }

  // operand(k, v): where vector v of row k of B lies.
  template <class Operand>
  BPPSA_INLINE void multiply_add_with(int64_t K, const T* a, int64_t lda, const Operand& operand) {
    const T* a_row[MR];
    for (int r = 0; r < MR; ++r) a_row[r] = a + (row + r) * lda;
    int64_t k = 0;
    if constexpr (KU > 1) {
      V part[KU][MR][NV] = {};
      for (; k + KU <= K; k += KU)
        for (int u = 0; u < KU; ++u) step(part[u], a_row, k + u, operand);
      for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) {
          if constexpr (KU == 2)
            acc[r][v] += part[0][r][v] + part[1][r][v];
          else
            acc[r][v] += (part[0][r][v] + part[1][r][v]) + (part[2][r][v] + part[3][r][v]);
        }
    }
    for (; k < K; ++k) step(acc, a_row, k, operand);
  }

  // acc[r][:] += sum_k a[k][row + r] * b[k][:], k in rows: A read by columns.
  BPPSA_INLINE void multiply_add_transposed(int64_t K, const T* a, int64_t lda, const T* b,
                                            int64_t ldb) {
    for (int64_t k = 0; k < K; ++k) {
      V x[NV];
      for (int v = 0; v < NV; ++v) x[v] = load<T, W>(b + k * ldb + col[v]);
      for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) acc[r][v] += a[k * lda + row + r] * x[v];
    }
  }

  // f(vector, its row, its first column).
  template <class F>
  BPPSA_INLINE void map(const F& f) {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = f(acc[r][v], row + r, col[v]);
  }

  BPPSA_INLINE void store_rows(T* p, int64_t ld) const {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) store<T, W>(p + (row + r) * ld + col[v], acc[r][v]);
  }

 private:
  template <class Operand>
  BPPSA_INLINE void step(V (&sum)[MR][NV], const T* const (&a)[MR], int64_t k,
                         const Operand& operand) const {
    V x[NV];
    for (int v = 0; v < NV; ++v) x[v] = load<T, W>(operand(k, v));
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) sum[r][v] += a[r][k] * x[v];
  }
};

// A tile's rows and vectors a row: accumulators, vectors of B and a broadcast fit the registers.
constexpr int kTileRows = BPPSA_VECTOR_REGISTERS >= 32 ? 8 : 4;
constexpr int kTileVectors = 3;

template <typename T, int W, int MR, int NV, class Body>
BPPSA_INLINE void run_tile(int64_t row, int64_t first, int64_t cols, const Body& body) {
  Tile<T, W, MR, NV> tile;
  tile.row = row;
  tile.first = first;
  for (int v = 0; v < NV; ++v) tile.col[v] = min((first + v) * W, cols - W);
  body(tile);
}

template <typename T, int W, int NV, class Body>
BPPSA_INLINE void run_strip(int64_t rows, int64_t first, int64_t cols, const Body& body) {
  constexpr int MR = kTileRows;
  int64_t r = 0;
  for (; r + MR <= rows; r += MR) run_tile<T, W, MR, NV>(r, first, cols, body);
  if constexpr (MR > 4)
    if (r + 4 <= rows) run_tile<T, W, 4, NV>(r, first, cols, body), r += 4;
  if constexpr (MR > 2)
    if (r + 2 <= rows) run_tile<T, W, 2, NV>(r, first, cols, body), r += 2;
  if (r < rows) run_tile<T, W, 1, NV>(r, first, cols, body);
}

// Vectors of a strip of tiles, of nearly equal size.
inline int64_t strip_vectors(int64_t vectors) {
  return ceil_div(vectors, ceil_div(vectors, int64_t(kTileVectors)));
}

// Calls body(tile) for tiles that cover rows x cols. W <= cols.
template <typename T, int W, class Body>
BPPSA_INLINE void for_each_tile(int64_t rows, int64_t cols, const Body& body) {
  const int64_t vectors = ceil_div(cols, W);
  const int64_t strip = strip_vectors(vectors);
  for (int64_t v = 0; v < vectors; v += strip) {
    switch (min(strip, vectors - v)) {
      case 1:
        run_strip<T, W, 1>(rows, v, cols, body);
        break;
      case 2:
        run_strip<T, W, 2>(rows, v, cols, body);
        break;
      default:
        run_strip<T, W, 3>(rows, v, cols, body);
    }
  }
}

// A matrix (K x cols) rearranged for for_each_tile: each strip of tiles reads one contiguous piece
// of it, in order; rows a power of two apart would fight for the same places of a cache. Element
// (k, c) lies at from[k * row_step + c * column_step].
template <typename T, int W>
void make_panels(int64_t K, int64_t cols, const T* from, int64_t row_step, int64_t column_step,
                 T* panels) {
  const int64_t vectors = ceil_div(cols, W), strip = strip_vectors(vectors);
  for (int64_t first = 0; first < vectors; first += strip) {
    const int64_t n = min(strip, vectors - first);
    T* panel = panels + first * W * K;
    for (int64_t v = 0; v < n; ++v) {
      const T* block = from + min((first + v) * W, cols - W) * column_step;
      for (int64_t k = 0; k < K; ++k)
        for (int i = 0; i < W; ++i)
          panel[(k * n + v) * W + i] = block[k * row_step + i * column_step];
    }
  }
}

// Numbers that the panels take: the last vector overlaps others.
inline int64_t panel_size(int64_t K, int64_t cols, int64_t W) { return K * ceil_div(cols, W) * W; }

// out = rows * matrix + addend: n rows of K numbers, matrix K x cols, n rows of cols numbers; each
// kind of rows its own distance apart. Null addend for none.
template <typename T>
using MultiplyRows = void (*)(int64_t n, int64_t K, int64_t cols, const T* rows, int64_t ld_rows,
                              const T* matrix, const T* addend, int64_t ld_addend, T* out,
                              int64_t ld_out);

template <typename T, int W, bool kPanels>
void multiply_rows_of_width(int64_t n, int64_t K, int64_t cols, const T* rows, int64_t ld_rows,
                            const T* matrix, const T* addend, int64_t ld_addend, T* out,
                            int64_t ld_out) {
  for_each_tile<T, W>(n, cols, [&](auto& tile) __attribute__((always_inline)) {
    tile.clear();
    if constexpr (kPanels)
      tile.multiply_add_panel(K, rows, ld_rows, matrix);
    else
      tile.multiply_add(K, rows, ld_rows, matrix, cols);
    if (addend) tile.add_rows(addend, ld_addend);
    tile.store_rows(out, ld_out);
  });
}

// Chosen once a scan: the one heavy template is then compiled once a width, whatever the
// number of cells and algorithms that call it.
template <typename T>
inline MultiplyRows<T> multiply_rows(int64_t cols, bool panels = false) {
  MultiplyRows<T> chosen = nullptr;
  with_width<T>(best_width<T>(cols), [&](auto width) {
    constexpr int W = decltype(width)::value;
    chosen = panels ? multiply_rows_of_width<T, W, true> : multiply_rows_of_width<T, W, false>;
  });
  return chosen;
}

// A matrix (K x cols) that many rows will be multiplied by: in panels if that is `worth` the copy,
// as it is otherwise (then row_step must be cols, column_step 1).
template <typename T>
class Multiplier {
 public:
  Multiplier(int64_t K, int64_t cols, const T* matrix, int64_t row_step, int64_t column_step,
             bool worth)
      : multiply_(multiply_rows<T>(cols, worth)),
        memory_(worth ? panel_size(K, cols, best_width<T>(cols)) : 0),
        matrix_(worth ? memory_.data : matrix),
        K_(K),
        cols_(cols) {
    if (worth)
      with_width<T>(best_width<T>(cols), [&](auto width) {
        make_panels<T, decltype(width)::value>(K, cols, matrix, row_step, column_step,
                                               memory_.data);
      });
  }

  // out = rows * matrix + addend.
  void operator()(int64_t n, const T* rows, int64_t ld_rows, const T* addend, int64_t ld_addend,
                  T* out, int64_t ld_out) const {
    multiply_(n, K_, cols_, rows, ld_rows, matrix_, addend, ld_addend, out, ld_out);
  }

 private:
  MultiplyRows<T> multiply_;
  Buffer<T> memory_;
  const T* matrix_;
  int64_t K_, cols_;
};

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

}  // namespace bppsa::BPPSA_ISA
