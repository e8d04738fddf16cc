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

// (A | b) of every chunk and sample, column by column, N numbers in each of N + 1 columns.
template <typename T>
struct StateProducts {
  T* data;
  int64_t B;
  int N;

  BPPSA_BOTH int64_t size() const { return int64_t{N} * (N + 1); }
  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * size(); }
};

/// What units j0 … j0 + kVec - 1 need from memory. Past H all sums are zero, and a unit below H
/// does no harm there.
template <class Cell, bool kExact, typename T = typename Cell::scalar_t>
BPPSA_DEVICE void read_units(const BackwardView<T>& view, const Feed<Cell>& feed, int j0,
                             typename Cell::Raw (&raw)[kVec<T>]) {
  if constexpr (kExact) {
    Cell::read_pack(feed.tape, j0, j0 - feed.row_step, raw);
  } else {
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
      const int unit = smaller(j0 + e, view.H - 1);
      raw[e] = Cell::read(feed.tape, unit, false, unit - feed.row_step);
    }
  }
}

/// next[q] += matrix[row] * gates[q][g], for the kH numbers of the row.
template <typename T, int kH, int kColumns, int G>
BPPSA_DEVICE void multiply(const T* matrix, int row, const T (&gates)[kColumns][G], int g,
                           T (&next)[kColumns][kH]) {
#pragma unroll
  for (int k = 0; k < kH; k += kVec<T>) {
    const Pack<T> w = *reinterpret_cast<const Pack<T>*>(matrix + row * kH + k);
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) next[q][k + e] += w.e[e] * gates[q][g];
    }
  }
}

// kExact: H is kH, and rows of H numbers can be read in pieces of 16 bytes.
template <class Cell, int kH, bool kExact, int kColumns>
__global__ void __launch_bounds__(kLaneThreads)
    recurrent_compose_kernel(BackwardView<typename Cell::scalar_t> view, int64_t span,
                             int64_t chunks, StateProducts<typename Cell::scalar_t> products,
                             StateCarries<typename Cell::scalar_t> carries) {
  using T = typename Cell::scalar_t;
  constexpr int G = Cell::kGates, S = Cell::kStates;
  const int H = view.H, N = products.N;
  T* const matrix = reinterpret_cast<T*>(shared_memory());  // (G, kH, kH), zeros past H
  for (int e = threadIdx.x; e < G * kH * kH; e += blockDim.x) {
    const int k = e % kH, j = e / kH % kH, g = e / (kH * kH);
    matrix[e] = j < H && k < H ? view.w_hh[(g * H + j) * H + k] : T(0);
  }
  __syncthreads();

  const int pieces = ceil_div(N + 1, kColumns);
  const int64_t lanes = view.B + (chunks - 2) * view.B * pieces;
  for (int64_t lane = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; lane < lanes;
       lane += int64_t{gridDim.x} * blockDim.x) {
    const bool ends = lane < view.B;
    const int64_t rest = ends ? 0 : lane - view.B;
    const int column0 = ends ? N : static_cast<int>(rest % pieces) * kColumns;
    const int64_t b = ends ? lane : rest / pieces % view.B;
    const int64_t chunk = ends ? chunks - 1 : rest / pieces / view.B + 1;
    const int64_t first = chunk * span, last = smaller(first + span, view.T_);

    T a[S][kColumns][kH];
#pragma unroll
    for (int s = 0; s < S; ++s) {
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
#pragma unroll
        for (int j = 0; j < kH; ++j) {
          a[s][q][j] = j < H && column0 + q == s * H + j ? T(1) : T(0);
          if (ends && q == 0 && j < H) a[s][q][j] = view.last(s, b, j);
        }
      }
    }
    Feed<Cell> feed(view, b, last);
    for (; feed.i >= first; feed.step_back()) {
      // The compiler must not take the matrix out of the loop: there are no registers for it.
      int offset = 0;
      asm volatile("" : "+r"(offset));
      const T* const weights = matrix + offset;
      T next[kColumns][kH];
#pragma unroll
      for (int q = 0; q < kColumns; ++q) {
        const bool shift = feed.has_direct && column0 + q == N;
#pragma unroll
        for (int j = 0; j < kH; ++j) {
          next[q][j] = shift && j < H ? feed.direct[j] : T(0);
        }
      }
#pragma unroll
      for (int j0 = 0; j0 < kH; j0 += kVec<T>) {
        typename Cell::Raw raw[kVec<T>];
        read_units<Cell, kExact>(view, feed, j0, raw);
#pragma unroll
        for (int e = 0; e < kVec<T>; ++e) {
          const int j = j0 + e;
          const auto factors = Cell::factors(raw[e]);
          T gates[kColumns][G];
#pragma unroll
          for (int q = 0; q < kColumns; ++q) {
            T g[S], past[S];
#pragma unroll
            for (int s = 0; s < S; ++s) g[s] = a[s][q][j];
            Cell::pull(factors, g, gates[q], past);
            next[q][j] += past[0];
            if constexpr (S == 2) a[1][q][j] = past[1];
          }
#pragma unroll
          for (int g = 0; g < G; ++g)
            multiply<T, kH, kColumns>(weights, g * kH + j, gates, g, next);
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
      T* const to = ends ? carries(chunk - 1, b) : products(chunk, b) + int64_t{column} * N;
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
template <typename T, class Run>
void with_lane_size(int H, Run run) {
  if constexpr (sizeof(T) == 4) {
    if (H <= 8) return run(std::integral_constant<int, 8>{});
    if (H <= 20) return run(std::integral_constant<int, 20>{});
  }
  run(std::integral_constant<int, 32>{});
}

/// Fills products(k, ·) for chunks 1 … chunks-2 and carries(chunks-2, ·); chunks >= 2.
template <class Cell>
void compose_recurrent(const BackwardView<typename Cell::scalar_t>& view, int64_t span,
                       int64_t chunks, const StateProducts<typename Cell::scalar_t>& products,
                       const StateCarries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using T = typename Cell::scalar_t;
  const auto with = [&](auto size, auto exact, auto columns) {
    constexpr int kH = decltype(size)::value, kColumns = decltype(columns)::value;
    const int64_t lanes = view.B + (chunks - 2) * view.B * ceil_div(products.N + 1, kColumns);
    launch("compose", recurrent_compose_kernel<Cell, kH, decltype(exact)::value, kColumns>,
           ceil_div<int64_t>(lanes, kLaneThreads), kLaneThreads, Cell::kGates * kH * kH * sizeof(T),
           view, span, chunks, products, carries);
  };
  with_lane_size<T>(view.H, [&](auto size) {
    constexpr int kH = decltype(size)::value;
    constexpr std::integral_constant<int, 1> one;
    if constexpr (sizeof(T) == 4 && kH >= 20) {
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
