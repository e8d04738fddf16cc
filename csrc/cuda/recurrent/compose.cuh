#pragma once
// Composition: the product (A | b) of the steps of a chunk, for all chunks in parallel.
//
// A state of N = kStates * H numbers makes N + 1 columns that never meet: each is a vector that
// goes through the chunk's steps on its own, column c from the c-th unit vector, column N, the
// shift b, from zero with the direct gradients added. So a lane owns kColumns of them, whole, in
// its registers, and nothing is exchanged and nobody waits; all lanes read the same recurrent
// matrix, from shared memory, and every number of it serves kColumns products. Lanes are counted
// through chunks, samples and columns, which leaves none idle.
//
// Of the last chunk one column is enough: the one that starts from the gradient at the end of the
// chain is the carry of the chunk before. Chunk 0 passes nothing on and is left out.
//
// The first B lanes are those of the last chunk, one a sample; the others are
// ((chunk - 1) * B + sample) * pieces + piece, a piece being kColumns columns.

#include "replay.cuh"

namespace bppsa::cuda {

constexpr int kLaneThreads = 128;

/// What units j0 … j0 + kVec - 1 need from memory. Past H all sums are zero, and a unit below H
/// does no harm there.
template <class Cell, bool kExact, typename Real = typename Cell::scalar_t>
BPPSA_DEVICE void read_units(const BackwardView<Real>& view, const Feed<Cell>& feed, int j0,
                             typename Cell::Raw (&raw)[kVec<Real>]) {
  if constexpr (kExact) {
    Cell::read_pack(feed.tape, j0, j0 - feed.row_step, raw);
  } else {
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) {
      const int unit = smaller(j0 + e, view.H - 1);
      raw[e] = Cell::read(feed.tape, unit, false, unit - feed.row_step);
    }
  }
}

/// next[q] += matrix[row] * d[q][g], for the kH numbers of the row.
template <typename Real, int kH, int kColumns, int kRows>
BPPSA_DEVICE void multiply(const Real* matrix, int row, const Real (&d)[kColumns][kRows], int g,
                           Real (&next)[kColumns][kH]) {
#pragma unroll
  for (int k = 0; k < kH; k += kVec<Real>) {
    const Pack<Real> w = *reinterpret_cast<const Pack<Real>*>(matrix + row * kH + k);
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) next[q][k + e] += w.e[e] * d[q][g];
    }
  }
}

// kExact: H is kH, and rows of H numbers can be read in pieces of 16 bytes.
template <class Cell, int kH, bool kExact, int kColumns>
__global__ void __launch_bounds__(kLaneThreads)
    recurrent_compose_kernel(BackwardView<typename Cell::scalar_t> view, int64_t span,
                             int64_t chunks, Products<typename Cell::scalar_t> products,
                             Carries<typename Cell::scalar_t> carries) {
  using Real = typename Cell::scalar_t;
  constexpr int G = Cell::kGates, S = Cell::kStates;
  const int H = view.H, N = products.N;
  Real* const matrix = reinterpret_cast<Real*>(shared_memory());  // (G, kH, kH), zeros past H
  for (int e = threadIdx.x; e < G * kH * kH; e += blockDim.x) {
    const int k = e % kH, j = e / kH % kH, g = e / (kH * kH);
    matrix[e] = j < H && k < H ? view.w_hh[(g * H + j) * H + k] : Real(0);
  }
  __syncthreads();

  const int pieces = ceil_div(N + 1, kColumns);
  const int64_t lanes = view.B + (chunks - 2) * view.B * pieces;
  // By hand, with the number of all lanes found again each time: the columns need its registers.
  for (int64_t lane = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; lane < lanes;
       lane += int64_t{gridDim.x} * blockDim.x) {
    const bool ends = lane < view.B;
    const int64_t rest = ends ? 0 : lane - view.B;
    const int column0 = ends ? N : static_cast<int>(rest % pieces) * kColumns;
    const int64_t b = ends ? lane : rest / pieces % view.B;
    const int64_t chunk = ends ? chunks - 1 : rest / pieces / view.B + 1;
    const int64_t first = chunk * span, last = smaller(first + span, view.T);  // as in Segments

    Real a[S][kColumns][kH];
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
#pragma unroll
        for (int j = 0; j < kH; ++j) {
          a[s][q][j] = j < H && column0 + q == s * H + j ? Real(1) : Real(0);
          if (ends && q == 0 && j < H) a[s][q][j] = view.last(s, b, j);
        }
      }
    }
    Feed<Cell> feed(view, b, last);
    for (; feed.i >= first; feed.step_back()) {
      // The compiler must not take the matrix out of the loop: there are no registers for it.
      int offset = 0;
      asm volatile("" : "+r"(offset));
      const Real* const weights = matrix + offset;
      Real next[kColumns][kH];
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        const bool shift = feed.has_direct && column0 + q == N;
#pragma unroll
        for (int j = 0; j < kH; ++j) {
          next[q][j] = shift && j < H ? feed.direct[j] : Real(0);
        }
      }
#pragma unroll
      for (int j0 = 0; j0 < kH; j0 += kVec<Real>) {
        typename Cell::Raw raw[kVec<Real>];
        read_units<Cell, kExact>(view, feed, j0, raw);
#pragma unroll
        for (int e = 0; e < kVec<Real>; ++e) {
          const int j = j0 + e;
          const auto factors = Cell::factors(raw[e]);
          Real d[kColumns][Cell::kRows];
#pragma unroll
          for (int q = 0; q < kColumns; ++q) {
            Real g[S], past[S];
#pragma unroll
            for (int s = 0; s < S; ++s) g[s] = a[s][q][j];
            Cell::pull(factors, g, d[q], past);
            next[q][j] += past[0];
            if constexpr (S == 2) a[1][q][j] = past[1];
          }
#pragma unroll
          for (int g = 0; g < G; ++g) {
            multiply(weights, g * kH + j, d, Cell::kFirstRecurrentRow + g, next);
          }
        }
      }
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
#pragma unroll
        for (int j = 0; j < kH; ++j) a[0][q][j] = next[q][j];
      }
    }
#pragma unroll
    for (int q = 0; q < kColumns; ++q) {
      const int column = column0 + q;
      if (column > N || (ends && q > 0)) break;
      Real* const to = ends ? carries(chunk - 1, b) : products(chunk, b) + int64_t{column} * N;
#pragma unroll
      for (int s = 0; s < S; ++s) {
#pragma unroll
        for (int j = 0; j < kH; ++j) {
          if (j < H) to[s * H + j] = a[s][q][j];
        }
      }
    }
  }
}

// Products pay, and a lane can hold a column, up to this H.
constexpr int kMostComposedH = 32;

/// Calls run(std::integral_constant) with the compiled size for H.
template <typename Real, class Run>
void with_lane_size(int H, Run run) {
  if constexpr (sizeof(Real) == 4) {
    if (H <= 8) return run(std::integral_constant<int, 8>{});
    if (H <= 20) return run(std::integral_constant<int, 20>{});
  }
  run(std::integral_constant<int, 32>{});
}

/// Fills products(k, ·) for chunks 1 … chunks-2 and carries(chunks-2, ·); chunks >= 2.
template <class Cell>
void compose_recurrent(const BackwardView<typename Cell::scalar_t>& view, int64_t span,
                       int64_t chunks, const Products<typename Cell::scalar_t>& products,
                       const Carries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const auto with = [&](auto size, auto exact, auto columns) {
    constexpr int kH = decltype(size)::value, kColumns = decltype(columns)::value;
    const int64_t lanes = view.B + (chunks - 2) * view.B * ceil_div(products.N + 1, kColumns);
    launch("compose", recurrent_compose_kernel<Cell, kH, decltype(exact)::value, kColumns>,
           ceil_div<int64_t>(lanes, kLaneThreads), kLaneThreads,
           Cell::kGates * kH * kH * sizeof(Real), view, span, chunks, products, carries);
  };
  with_lane_size<Real>(view.H, [&](auto size) {
    constexpr int kH = decltype(size)::value;
    constexpr std::integral_constant<int, 1> one;
    if constexpr (sizeof(Real) == 4 && kH >= 20) {
      if (view.H == kH && view.tape.in_pieces()) {
        if constexpr (Cell::kStates == 1 && kH == 20) {
          // Two columns a lane halve the reads of the matrix, once there are lanes enough to fill
          // the device with half of them.
          const int64_t lanes = chunks * view.B * (products.N + 1);
          if (lanes >= int64_t{launch.processors} * 1024) {
            return with(size, std::true_type{}, std::integral_constant<int, 2>{});
          }
        }
        return with(size, std::true_type{}, one);
      }
    }
    with(size, std::false_type{}, one);
  });
}

}  // namespace bppsa::cuda
