#pragma once
// The carry phase: from the carry of chunk chunks-2 to those of all chunks before it, matrix-vector
// only; where a product is not trusted (../trust.cuh says when), its chunk is walked step by step.
//
// One block a sample; thread r owns row r of every product. Products wait in registers, several
// chunks ahead.

#include "../trust.cuh"
#include "compose.cuh"

namespace bppsa::cuda {

// Walks of untrusted chunks are rare: they read the matrix from memory.
using CarryShape = UnitShape<1, 0, false, 64, 1, 2>;

BPPSA_DEVICE float larger(float a, float b) { return fmaxf(a, fabsf(b)); }
BPPSA_DEVICE double larger(double a, double b) { return fmax(a, fabs(b)); }

template <typename T, int kN>
struct ProductRow {
  T entry[kN], shift;

  BPPSA_DEVICE void fetch(const StateProducts<T>& products, int64_t k, int64_t b, int r) {
    const T* const at = products(k, b) + r;
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      entry[c] = c < products.N ? at[int64_t{c} * products.N] : T(0);
    }
    shift = at[int64_t{products.N} * products.N];
  }
  /// The largest magnitude; NaNs show in times().
  BPPSA_DEVICE T peak() const {
    T part[4] = {};
#pragma unroll
    for (int c = 0; c < kN; ++c) part[c % 4] = larger(part[c % 4], entry[c]);
    return larger(larger(part[0], part[1]), larger(part[2], part[3]));
  }
  BPPSA_DEVICE T times(const T* x) const {
    T part[kVec<T>];
#pragma unroll
    for (int e = 0; e < kVec<T>; ++e) part[e] = e == 0 ? shift : T(0);
#pragma unroll
    for (int c = 0; c < kN; c += kVec<T>) {
      const Pack<T> v = *reinterpret_cast<const Pack<T>*>(x + c);
#pragma unroll
      for (int e = 0; e < kVec<T>; ++e) part[e] += entry[c + e] * v.e[e];
    }
    T sum = part[0];
#pragma unroll
    for (int e = 1; e < kVec<T>; ++e) sum += part[e];
    return sum;
  }
};

/// Whether this product may stand for its chunk; the same answer in all threads, after a barrier.
template <typename T>
BPPSA_DEVICE bool trusted(T y, T peak, T own_carry) {
  const bool sound = y - y == 0 && peak <= Trusted<T>::huge;
  if (!__syncthreads_or(!sound || peak < Trusted<T>::tiny)) return true;
  if (__syncthreads_or(!sound)) return false;
  const bool vanished = __syncthreads_and(peak < Trusted<T>::tiny);
  return !__syncthreads_or(vanished && fabs(own_carry) > 1);
}

template <class Cell, int kH>
__global__ void __launch_bounds__(64)
    recurrent_carry_kernel(BackwardView<typename Cell::scalar_t> view, int64_t span, int64_t chunks,
                           StateProducts<typename Cell::scalar_t> products,
                           StateCarries<typename Cell::scalar_t> carries) {
  using T = typename Cell::scalar_t;
  constexpr int S = Cell::kStates, kN = S * kH;
  constexpr int kRing = smaller(4, ceil_div(128, kN * static_cast<int>(sizeof(T) / 4)));
  const int H = view.H, N = products.N;
  const int r = smaller(static_cast<int>(threadIdx.x), N - 1);  // threads past N shadow the last
  const bool owns = static_cast<int>(threadIdx.x) < N;
  T* now = reinterpret_cast<T*>(shared_memory());
  T* next = now + kN;
  T* const panes = next + kN;
  const int pitch = padded<T, CarryShape>(H);
  const Weights<T, Cell::kGates, CarryShape> weights(view.w_hh, H, true);
  for (int e = threadIdx.x; e < 2 * Cell::kGates * pitch; e += blockDim.x) panes[e] = 0;
  for (int64_t b = blockIdx.x; b < view.B; b += gridDim.x) {
    for (int e = threadIdx.x; e < kN; e += blockDim.x) {
      now[e] = e < N ? carries(chunks - 2, b)[e] : T(0);
      next[e] = 0;
    }
    // Rounds over the ring, until a product is not trusted. Then its chunk is walked, and the ring
    // is filled again behind it. (The walk inside the rounds would be compiled once a slot.)
    for (int64_t k = chunks - 2; k >= 1;) {
      ProductRow<T, kN> ring[kRing];
      int64_t ahead = k;
      const auto fetch = [&](ProductRow<T, kN>& slot) {
        if (ahead >= 1) slot.fetch(products, ahead, b, r);
        --ahead;
      };
#pragma unroll
      for (int slot = 0; slot < kRing; ++slot) fetch(ring[slot]);
      __syncthreads();
      bool walks = false;
      while (k >= 1 && !walks) {
#pragma unroll
        for (int slot = 0; slot < kRing; ++slot) {
          if (k < 1) break;
          const T y = ring[slot].times(now);
          const T peak = ring[slot].peak();
          fetch(ring[slot]);
          if (owns) next[r] = y;
          walks = !trusted(y, peak, now[r]);
          if (walks) break;
          if (owns) carries(k - 1, b)[r] = y;
          T* const before = now;
          now = next;
          next = before;
          --k;
        }
      }
      if (!walks) break;
      report_untrusted();
      const int unit = smaller(static_cast<int>(threadIdx.x), H - 1);
      T g[1][S];
#pragma unroll
      for (int s = 0; s < S; ++s) g[0][s] = now[s * H + unit];
      walk_back<Cell, CarryShape, false>(view, weights, b, (k + 1) * span, k * span, g, panes);
      if (static_cast<int>(threadIdx.x) < H) {
#pragma unroll
        for (int s = 0; s < S; ++s) next[s * H + unit] = g[0][s];
      }
      __syncthreads();
      if (owns) carries(k - 1, b)[r] = next[r];
      T* const before = now;
      now = next;
      next = before;
      --k;
    }
    __syncthreads();  // the next sample reuses the shared memory
  }
}

/// Fills carries(k, ·) for k = chunks-3 … 0.
template <class Cell>
void carry_recurrent(const BackwardView<typename Cell::scalar_t>& view, int64_t span,
                     int64_t chunks, const StateProducts<typename Cell::scalar_t>& products,
                     const StateCarries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using T = typename Cell::scalar_t;
  with_lane_size<T>(view.H, [&](auto size) {
    constexpr int kH = decltype(size)::value;
    const size_t numbers =
        2 * Cell::kStates * kH + 2 * Cell::kGates * padded<T, CarryShape>(view.H);
    launch("carry", recurrent_carry_kernel<Cell, kH>, view.B, round_up(products.N, 32),
           numbers * sizeof(T), view, span, chunks, products, carries);
  });
}

}  // namespace bppsa::cuda
