#pragma once
// The carry phase: from the carry of chunk chunks-2 to those of all chunks before it, matrix-vector
// only; where a product is not trusted (scan/trust.h says when), its chunk is walked step by step.
//
// One block a sample; thread r owns row r of every product. Products wait in registers, several
// chunks ahead.

#include "../../scan/trust.h"
#include "../device/untrusted.cuh"
#include "compose.cuh"

namespace bppsa::cuda {

// Walks of untrusted chunks are rare: they read the matrix from memory.
using CarryShape = UnitShape<1, 0, false, 64, 1, 2>;

BPPSA_DEVICE float max_abs(float a, float b) { return fmaxf(a, fabsf(b)); }
BPPSA_DEVICE double max_abs(double a, double b) { return fmax(a, fabs(b)); }

template <typename Real, int kN>
struct ProductRow {
  Real entry[kN], shift;

  BPPSA_DEVICE void fetch(const Products<Real>& products, int64_t k, int64_t b, int r) {
    const Real* const at = products(k, b) + r;
#pragma unroll
    for (int c = 0; c < kN; ++c) {
      entry[c] = c < products.N ? at[int64_t{c} * products.N] : Real(0);
    }
    shift = at[int64_t{products.N} * products.N];
  }
  /// The largest magnitude; NaNs show in times().
  BPPSA_DEVICE Real peak() const {
    Real part[4] = {};
#pragma unroll
    for (int c = 0; c < kN; ++c) part[c % 4] = max_abs(part[c % 4], entry[c]);
    return max_abs(max_abs(part[0], part[1]), max_abs(part[2], part[3]));
  }
  BPPSA_DEVICE Real times(const Real* x) const {
    Real part[kVec<Real>];
#pragma unroll
    for (int e = 0; e < kVec<Real>; ++e) part[e] = e == 0 ? shift : Real(0);
#pragma unroll
    for (int c = 0; c < kN; c += kVec<Real>) {
      const Pack<Real> v = *reinterpret_cast<const Pack<Real>*>(x + c);
#pragma unroll
      for (int e = 0; e < kVec<Real>; ++e) part[e] += entry[c + e] * v.e[e];
    }
    Real sum = part[0];
#pragma unroll
    for (int e = 1; e < kVec<Real>; ++e) sum += part[e];
    return sum;
  }
};

/// Whether this product may stand for its chunk; the same answer in all threads, after a barrier.
template <typename Real>
BPPSA_DEVICE bool trusted(Real y, Real peak, Real own_carry) {
  const bool sound = y - y == 0 && peak <= TrustedMatrix<Real>::large;
  if (!__syncthreads_or(!sound || peak < TrustedMatrix<Real>::tiny)) return true;
  if (__syncthreads_or(!sound)) return false;
  const bool vanished = __syncthreads_and(peak < TrustedMatrix<Real>::tiny);
  return !__syncthreads_or(vanished && fabs(own_carry) > 1);
}

template <class Cell, int kH>
__global__ void __launch_bounds__(64)
    recurrent_carry_kernel(BackwardView<typename Cell::scalar_t> view, int64_t span, int64_t chunks,
                           Products<typename Cell::scalar_t> products,
                           Carries<typename Cell::scalar_t> carries) {
  using Real = typename Cell::scalar_t;
  constexpr int S = Cell::kStates, kN = S * kH;
  constexpr int kRing = smaller(4, ceil_div(128, kN * static_cast<int>(sizeof(Real) / 4)));
  const int H = view.H, N = products.N;
  const int r = smaller(static_cast<int>(threadIdx.x), N - 1);  // threads past N shadow the last
  const bool owns = static_cast<int>(threadIdx.x) < N;
  Real* now = reinterpret_cast<Real*>(shared_memory());
  Real* next = now + kN;
  Real* const panes = next + kN;
  const int pitch = padded<Real, CarryShape>(H);
  const Weights<Real, Cell::kGates, CarryShape> weights(view.w_hh, H, true);
  for (int e = threadIdx.x; e < 2 * Cell::kGates * pitch; e += blockDim.x) panes[e] = 0;
  for (int64_t b = blockIdx.x; b < view.B; b += gridDim.x) {
    for (int e = threadIdx.x; e < kN; e += blockDim.x) {
      now[e] = e < N ? carries(chunks - 2, b)[e] : Real(0);
      next[e] = 0;
    }
    const auto step_down = [&](int64_t& k, Real g) {
      if (owns) carries(k - 1, b)[r] = g;
      Real* const before = now;
      now = next;
      next = before;
      --k;
    };
    // Rounds over the ring, until a product is not trusted. Then its chunk is walked, and the ring
    // is filled again behind it. (The walk inside the rounds would be compiled once a slot.)
    for (int64_t k = chunks - 2; k >= 1;) {
      ProductRow<Real, kN> ring[kRing];
      int64_t ahead = k;
      const auto fetch = [&](ProductRow<Real, kN>& slot) {
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
          const Real y = ring[slot].times(now);
          const Real peak = ring[slot].peak();
          fetch(ring[slot]);
          if (owns) next[r] = y;
          walks = !trusted(y, peak, now[r]);
          if (walks) break;
          step_down(k, y);
        }
      }
      if (!walks) break;
      report_untrusted();
      const int unit = smaller(static_cast<int>(threadIdx.x), H - 1);
      Real g[1][S];
#pragma unroll
      for (int s = 0; s < S; ++s) g[0][s] = now[s * H + unit];
      // (The chain's last chunk is not among these: they are all whole.)
      walk_back<Cell, CarryShape>(view, weights, b, (k + 1) * span, k * span, g, panes, false);
      if (static_cast<int>(threadIdx.x) < H) {
#pragma unroll
        for (int s = 0; s < S; ++s) next[s * H + unit] = g[0][s];
      }
      __syncthreads();
      step_down(k, next[r]);
    }
    __syncthreads();  // the next sample reuses the shared memory
  }
}

/// Fills carries(k, ·) for k = chunks-3 … 0.
template <class Cell>
void carry_recurrent(const BackwardView<typename Cell::scalar_t>& view, int64_t span,
                     int64_t chunks, const Products<typename Cell::scalar_t>& products,
                     const Carries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  with_lane_size<Real>(view.H, [&](auto size) {
    constexpr int kH = decltype(size)::value;
    const size_t numbers =
        2 * Cell::kStates * kH + 2 * Cell::kGates * padded<Real, CarryShape>(view.H);
    launch("carry", recurrent_carry_kernel<Cell, kH>, view.B, round_up(products.N, 32),
           numbers * sizeof(Real), view, span, chunks, products, carries);
  });
}

}  // namespace bppsa::cuda
