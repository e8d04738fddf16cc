#pragma once
// Which windows were begun with what they should have been begun with (scan/met.h), of all samples.

#include "../../scan/met.h"
#include "../device/launcher.cuh"
#include "../device/numbers.cuh"

namespace bppsa::cuda {

/// The largest of all lanes.
template <typename Real>
BPPSA_DEVICE Real largest_of_warp(Real own) {
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) own = larger(own, __shfl_xor_sync(0xffffffffu, own, d));
  return own;
}

/// The largest magnitude in each of N columns. A warp a column.
template <typename Real>
__global__ void __launch_bounds__(kWarp)
    largest_kernel(const Real* numbers, int64_t rows, int N, Real* to) {
  for (int64_t column = blockIdx.x; column < N; column += gridDim.x) {
    Real own = 0;
#pragma unroll 8
    for (int64_t row = threadIdx.x; row < rows; row += kWarp) {
      own = larger(own, magnitude(numbers[row * N + column]));
    }
    own = largest_of_warp(own);
    if (threadIdx.x == 0) to[column] = own;
  }
}

constexpr int kMetThreads = 256;

/// met[pair]: whether guessed (pairs, B, N) is near to right in all samples, and, if this is not
/// the `first` part of their state, was before. A block a pair; a warp takes a sample at a time.
template <typename Real, class Near>
__global__ void __launch_bounds__(kMetThreads)
    met_kernel(const Real* guessed, const Real* right, int64_t pairs, int64_t B, int N, Near near,
               bool first, int32_t* met) {
  const int lane = threadIdx.x % kWarp;
  for (int64_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
    bool own = true;
    for (int64_t b = threadIdx.x / kWarp; b < B; b += kMetThreads / kWarp) {
      const Real *const is = guessed + (pair * B + b) * N, *const was = right + (pair * B + b) * N;
      Real size = 0;
      for (int i = lane; i < N; i += kWarp) size = larger(size, magnitude(was[i]));
      const Real of_sample = near.of_sample(largest_of_warp(size));
      for (int i = lane; i < N; i += kWarp) own = own && near.near(is[i], was[i], of_sample, i);
    }
    const bool all = __syncthreads_and(own);
    if (threadIdx.x == 0) met[pair] = all && (first || met[pair]);
  }
}

/// Of states that windows began with, and ended with, (windows, B, N): whether each but the first
/// began where the one before it ended.
template <typename Real>
void states_met(const Real* begun, const Real* ended, int64_t windows, int64_t B, int N,
                const StatesNear<Real>& near, bool first, int32_t* met, Launcher& launch) {
  launch("states met", met_kernel<Real, StatesNear<Real>>, windows - 1, kMetThreads, 0,
         begun + B * N, ended, windows - 1, B, N, near, first, met);
}

/// The same of gradients that entered windows, and left them.
template <typename Real>
void gradients_met(const Real* entered, const Real* left, int64_t windows, int64_t B, int N,
                   Real roundings, bool first, int32_t* met, Launcher& launch) {
  Real* const of_unit = launch.template allocate<Real>(N);
  left += B * N;
  launch("largest gradients", largest_kernel<Real>, N, kWarp, 0, left, (windows - 1) * B, N,
         of_unit);
  launch("gradients met", met_kernel<Real, GradientsNear<Real>>, windows - 1, kMetThreads, 0,
         entered, left, windows - 1, B, N, GradientsNear<Real>{of_unit, roundings}, first, met);
}

}  // namespace bppsa::cuda
