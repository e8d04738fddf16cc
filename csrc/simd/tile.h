// Tile: MR x NV vectors of a product of rows, held in registers.
//
//   C[r][:] = sum_k A[r][k] * B[k][:] + addend       r in rows, B's rows contiguous
//
// The addend comes last: beside a large one, every earlier partial sum would be rounded to its
// last place (seen: 1.5 times PyTorch's error).
//
// Every dense product of the project has this form: rows are samples of a recurrent step, or those
// of a product of Jacobians. for_each_tile cuts rows x columns into tiles that fit the registers
// and calls the body, which multiplies, adds and stores.
//
// A last partial vector is laid over its neighbour, columns [n - W, n): the overlap is computed
// twice by the same operations, and the destination must not be an operand. Where the columns are
// padded (kPadded: B in panels filled up with zeros), the last vector begins where the one before
// it ends and only its columns are stored: a load of what two stores wrote would wait for both. If
// only a half or a quarter of it is used, it takes two or four k at a time (NarrowTile).
#pragma once

#include "lanes.h"
#include "rows.h"

namespace bppsa::BPPSA_ISA {

template <typename T_, int W, int MR, int NV, bool kPadded>
struct Tile {
  using T = T_;
  using V = Vec<T, W>;
  // Few accumulators leave the multiply-add latency bare: sum over k in KU independent parts.
  static constexpr int KU = MR * NV >= 8 ? 1 : MR * NV >= 4 ? 2 : 4;

  V acc[MR][NV];
  const int64_t row;
  const int64_t first;  // number of its first vector, in the order of the panels of a matrix
  const int64_t cols;   // of the whole matrix
  int64_t col[NV];

  BPPSA_INLINE Tile(int64_t row, int64_t first, int64_t cols) : row(row), first(first), cols(cols) {
    for (int v = 0; v < NV; ++v)
      col[v] = kPadded ? (first + v) * W : min((first + v) * W, cols - W);
  }

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

  BPPSA_INLINE void add_rows(ConstRows<T> rows) {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] += load<T, W>(rows[row + r] + col[v]);
  }

  // Rows of no more than n numbers.
  BPPSA_INLINE void add_rows_of(int64_t n, ConstRows<T> rows) {
    const int64_t in_last = n - col[NV - 1];
    for (int r = 0; r < MR; ++r) {
      const T* from = rows[row + r];
      for (int v = 0; v + 1 < NV; ++v) acc[r][v] += load<T, W>(from + col[v]);
      acc[r][NV - 1] += load_first<T, W>(from + col[NV - 1], in_last);
    }
  }

  // B in panels: what the tile reads lies in one piece, see panels.h.
  BPPSA_INLINE void multiply_add_panel(int64_t K, ConstRows<T> a, const T* panels) {
    const T* panel = panels + first * W * K;
    multiply_add_with(K, a, [&](int64_t k, int v) { return panel + (k * NV + v) * W; });
  }

  BPPSA_INLINE void multiply_add(int64_t K, ConstRows<T> a, ConstRows<T> b) {
    multiply_add_with(K, a, [&](int64_t k, int v) { return b[k] + col[v]; });
  }

  // operand(k, v): where vector v of row k of B lies.
  template <class Operand>
  BPPSA_INLINE void multiply_add_with(int64_t K, ConstRows<T> a, const Operand& operand) {
    const T* a_row[MR];
    for (int r = 0; r < MR; ++r) a_row[r] = a[row + r];
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
  BPPSA_INLINE void multiply_add_transposed(int64_t K, ConstRows<T> a, ConstRows<T> b) {
    for (int64_t k = 0; k < K; ++k) {
      V x[NV];
      for (int v = 0; v < NV; ++v) x[v] = load<T, W>(b[k] + col[v]);
      for (int r = 0; r < MR; ++r)
        for (int v = 0; v < NV; ++v) acc[r][v] += a[k][row + r] * x[v];
    }
  }

  // Ends the products; what is added from here on is added to sums.
  BPPSA_INLINE void sum() {}

  template <class F>
  BPPSA_INLINE void map(const F& f) {
    for (int r = 0; r < MR; ++r)
      for (int v = 0; v < NV; ++v) acc[r][v] = f(acc[r][v]);
  }

  BPPSA_INLINE void store_rows(Rows<T> rows) const {
    const int64_t in_last = cols - col[NV - 1];
    for (int r = 0; r < MR; ++r) {
      T* out = rows[row + r];
      for (int v = 0; v + 1 < NV; ++v) store<T, W>(out + col[v], acc[r][v]);
      if (!kPadded || in_last >= W)
        store<T, W>(out + col[NV - 1], acc[r][NV - 1]);
      else
        store_whole_parts<T, W>(out + col[NV - 1], acc[r][NV - 1], in_last);
    }
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

// The columns of a product that are left over: W / KP of them. A vector holds KP terms of the sum
// for each, lane column * KP + k, and is multiplied by KP numbers of A over and over; `sum` adds up
// the terms and lays KP rows into one vector.
template <typename T_, int W, int MR, int KP>
struct NarrowTile {
  using T = T_;
  using V = Vec<T, W>;
  static constexpr int kCols = W / KP;
  static constexpr int NP = (MR + KP - 1) / KP;
  using Stacked = Lanes<T, kCols, KP>;

  V part[MR];
  V acc[NP];
  const int64_t row, first, col;

  BPPSA_INLINE NarrowTile(int64_t row, int64_t first) : row(row), first(first), col(first * W) {}

  BPPSA_INLINE void clear() {
    for (int r = 0; r < MR; ++r) part[r] = V{};
  }

  BPPSA_INLINE void multiply_add_panel(int64_t K, ConstRows<T> a, const T* panels) {
    const T* b = panels + first * W * K;
    int64_t k = 0;
    for (; k + KP <= K; k += KP, b += W) {
      const V x = load<T, W>(b);
      for (int r = 0; r < MR; ++r) part[r] += repeat<T, W, KP>(a[row + r] + k) * x;
    }
    if (k == K) return;
    // What is left over, in the first term alone: elsewhere is nothing, and infinity times that.
    IntVec<T, W> is_first;
    for (int i = 0; i < W; ++i) is_first[i] = i % KP == 0 ? -1 : 0;
    for (; k < K; ++k, b += W) {
      const V x = load<T, W>(b);
      for (int r = 0; r < MR; ++r) part[r] = is_first ? part[r] + a[row + r][k] * x : part[r];
    }
  }

  BPPSA_INLINE void sum() {
    for (int i = 0; i < NP; ++i) {
      const auto pair = [&](int r) __attribute__((always_inline)) {
        return pair_sums<T, W>(part[min(i * KP + r, MR - 1)], part[min(i * KP + r + 1, MR - 1)]);
      };
      acc[i] = KP == 2 ? pair(0) : pair_sums<T, W>(pair(0), pair(2));
    }
  }

  BPPSA_INLINE void add_row(const T* p) {
    const V x = repeat<T, W, kCols>(p + col);
    for (int i = 0; i < NP; ++i) acc[i] += x;
  }

  BPPSA_INLINE void add_rows(ConstRows<T> rows) { add_rows_of(col + kCols, rows); }

  BPPSA_INLINE void add_rows_of(int64_t n, ConstRows<T> rows) {
    for (int i = 0; i < NP; ++i)
      acc[i] += Stacked::gather([&](int r) __attribute__((always_inline)) {
        return load_first<T, kCols>(rows[row + min(i * KP + r, MR - 1)] + col, n - col);
      });
  }

  template <class F>
  BPPSA_INLINE void map(const F& f) {
    for (int i = 0; i < NP; ++i) acc[i] = f(acc[i]);
  }

  BPPSA_INLINE void store_rows(Rows<T> rows) const {
    for (int i = 0; i < NP; ++i)
      Stacked::store(rows[row + i * KP] + col, rows.ld, acc[i], min(KP, MR - i * KP));
  }
};

// A tile's rows and vectors a row: accumulators, vectors of B and a broadcast fit the registers.
constexpr int kTileRows = BPPSA_VECTOR_REGISTERS >= 32 ? 8 : 4;
constexpr int kTileVectors = 3;

// How the columns of a product are shared out: whole vectors (the last perhaps not quite full),
// `strip` of them a tile at most, in strips of nearly equal size; and, of padded columns, the terms
// a narrow last vector takes at a time (or 1: there is none).
template <typename T, int W, bool kPadded = true>
struct Columns {
  int64_t cols, vectors, strip;
  int narrow = 1;

  constexpr explicit Columns(int64_t cols) : cols(cols), vectors(cols / W) {
    if (kPadded && cols % W * 4 == W) narrow = 4;
    if (kPadded && cols % W * 2 == W) narrow = 2;
    if (cols % W && narrow == 1) ++vectors;
    strip = vectors ? ceil_div(vectors, ceil_div(vectors, int64_t(kTileVectors))) : 1;
  }
};

// run(rows of a tile, its first row) until all rows are done.
template <class Run>
BPPSA_INLINE void for_each_row_of_tiles(int64_t rows, const Run& run) {
  constexpr int MR = kTileRows;
  int64_t r = 0;
  for (; r + MR <= rows; r += MR) run(Constant<MR>{}, r);
  if constexpr (MR > 4)
    if (r + 4 <= rows) run(Constant<4>{}, r), r += 4;
  if constexpr (MR > 2)
    if (r + 2 <= rows) run(Constant<2>{}, r), r += 2;
  if (r < rows) run(Constant<1>{}, r);
}

// Calls body(tile) for tiles that cover rows x cols. W <= cols, unless they are padded.
template <typename T, int W, bool kPadded, class Body>
BPPSA_INLINE void for_each_tile(int64_t rows, const Columns<T, W, kPadded>& columns,
                                const Body& body) {
  const int64_t vectors = columns.vectors;
  const auto strip = [&](auto width, int64_t first) __attribute__((always_inline)) {
    for_each_row_of_tiles(rows, [&](auto height, int64_t row) __attribute__((always_inline)) {
      Tile<T, W, height.value, width.value, kPadded> tile(row, first, columns.cols);
      body(tile);
    });
  };
  for (int64_t v = 0; v < vectors; v += columns.strip) {
    const int64_t width = min(columns.strip, vectors - v);
    if (width == 1)
      strip(Constant<1>{}, v);
    else if constexpr (W > 1 || kMinWidth<T> > 2)  // of doubles W = 1 is one column
      width == 2 ? strip(Constant<2>{}, v) : strip(Constant<kTileVectors>{}, v);
  }
  const auto narrow = [&](auto terms) __attribute__((always_inline)) {
    constexpr int KP = terms.value;
    if constexpr (kPadded && W / KP >= kMinWidth<T>)
      if (columns.narrow == KP)
        for_each_row_of_tiles(rows, [&](auto height, int64_t row) __attribute__((always_inline)) {
          NarrowTile<T, W, height.value, KP> tile(row, vectors);
          body(tile);
        });
  };
  narrow(Constant<4>{});
  narrow(Constant<2>{});
}

}  // namespace bppsa::BPPSA_ISA
