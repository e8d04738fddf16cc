#pragma once
// What both directions of a regularised layer on CUDA share: its tensors, typed, and sums over the
// units of a sample's row, which the threads of a block share out.

#include "../device/math.cuh"
#include "../device/threads.cuh"
// After what makes the emulator's compiler take device code.
#include "../../cells/formulas.h"
#include "../../cells/list.h"
#include "../../recurrent/regularised_row.h"

namespace bppsa::cuda {

template <typename Real>
BPPSA_DEVICE Real activated(Activation which, Real z) {
  return which == Activation::sigmoid ? sigmoid(z) : which == Activation::tanh ? tanh_of(z) : z;
}

// The sum over all threads of a block, for all of them. `room`: a number a warp.
template <typename Real>
BPPSA_DEVICE Real block_sum(Real own, Real* room) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) own += __shfl_xor_sync(0xffffffffu, own, d);
  __syncthreads();  // the room has been read
  if (threadIdx.x % kWarp == 0) room[threadIdx.x / kWarp] = own;
  __syncthreads();
  Real sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += room[w];
  return sum;
}

constexpr int kMostWarps = 16;

/// Numbers i < n, shared out to the threads of a block.
template <class Run>
BPPSA_DEVICE void each_of_block(int64_t n, const Run& run) {
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) run(i);
}

// Of v (n): the mean, and by what (v - mean) is multiplied to have variance 1.
template <typename Real>
struct BlockMoments {
  Real mean, scale;

  BPPSA_DEVICE BlockMoments(const Real* v, int64_t n, Real* room) {
    Real own = 0;
    each_of_block(n, [&](int64_t i) { own += v[i]; });
    mean = block_sum(own, room) / Real(n);
    own = 0;
    each_of_block(n, [&](int64_t i) { own += (v[i] - mean) * (v[i] - mean); });
    scale = 1 / sqrt(block_sum(own, room) / Real(n) + Real(1e-5));
  }
};

// out[j] = sum over i of v[i] m[i * pitch + j], for j < n: neighbouring threads read neighbours.
template <typename Real>
BPPSA_DEVICE Real dot_column(const Real* v, const Real* m, int64_t pitch, int64_t n) {
  Real sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
#pragma unroll
    for (int u = 0; u < 4; ++u) sum[u] += v[i + u] * m[(i + u) * pitch];
  for (; i < n; ++i) sum[0] += v[i] * m[i * pitch];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// A layer's tensors, typed, as both directions read them.
template <class Cell, bool kNormalised, typename Real>
struct RegularisedView {
  using Saved = SavedRow<Cell, kNormalised>;
  using Math = ScalarMath<Real>;
  static constexpr bool kHasC = Cell::kStates == 2;

  const RegularisedRequest& request;
  const int64_t H = request.H, GH = Cell::kGates * H;

  BPPSA_DEVICE static const Real* in(const void* data) { return static_cast<const Real*>(data); }
  BPPSA_DEVICE Real number(const void* data, int64_t i) const {
    return data ? in(data)[i] : Real(0);
  }
  // Of all gates of a unit; zeros where none are given.
  BPPSA_DEVICE void peepholes(int64_t k, Real (&p)[Cell::kGates]) const {
#pragma unroll
    for (int gate = 0; gate < Cell::kGates; ++gate) p[gate] = number(request.b_hh, gate * H + k);
  }
  BPPSA_DEVICE bool kept(const uint8_t* all, int64_t t, int64_t b, int64_t k) const {
    return all && all[t * request.kept_step + b * H + k];
  }
};

inline int regularised_threads(int64_t GH) {
  return static_cast<int>(smaller<int64_t>(round_up<int64_t>(GH, kWarp), kMostWarps * kWarp));
}

}  // namespace bppsa::cuda
