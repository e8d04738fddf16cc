#pragma once
// out = A x for CSR matrices of one pattern: rows times samples, each a sum over the row's entries.
//
// A warp has a few rows and a tile of samples. Of its lanes, the samples of the tile are
// neighbours, so that they read whole lines of x and of values that lie side by side; then come
// lanes that share a row's entries, as many as its mean length is worth, which add up by shuffles;
// then rows.

#include "../../requests/jacobians.h"
#include "../device/threads.cuh"

namespace bppsa::cuda {

struct ApplyShape {
  int samples, entries, rows;  // lanes of each: powers of two, together a warp
  int64_t tiles;               // of samples

  static ApplyShape of(const ApplyRequest& args) {
    int samples = 1, entries = 1;
    while (samples < kWarp && samples < args.batch) samples *= 2;
    // Tiles that are less full than four fifths become narrower, down to eight samples.
    while (samples > 8 && 4 * round_up<int64_t>(args.batch, samples) > 5 * args.batch) samples /= 2;
    while (entries * samples < kWarp && entries * args.rows < args.entries) entries *= 2;
    return {samples, entries, kWarp / samples / entries, ceil_div<int64_t>(args.batch, samples)};
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock)
    apply_kernel(ApplyRequest args, ApplyShape shape) {
  const int lane = threadIdx.x % kWarp, s = lane % shape.samples;
  const int entry = lane / shape.samples % shape.entries;
  const int row_of_warp = lane / shape.samples / shape.entries;
  const int64_t groups = ceil_div<int64_t>(args.rows, shape.rows);
  const T* const values = static_cast<const T*>(args.values);
  const T* const x = static_cast<const T*>(args.x);
  const int64_t warps = blockDim.x / kWarp, all = warps * gridDim.x;
  // The same number of turns for all lanes of a warp: they add up together.
  for (int64_t n = blockIdx.x * warps + threadIdx.x / kWarp; n < groups * shape.tiles; n += all) {
    const int64_t row = n / shape.tiles * shape.rows + row_of_warp;
    const int64_t sample = n % shape.tiles * shape.samples + s;
    const bool active = row < args.rows && sample < args.batch;
    T sum = 0;
    if (active) {
      const int64_t end = args.a.crow[row + 1];
      for (int64_t j = args.a.crow[row] + entry; j < end; j += shape.entries) {
        sum += values[j * args.stride.entry + sample * args.stride.sample] *
               x[args.a.col[j] * args.batch + sample];
      }
    }
    for (int d = shape.samples; d < shape.samples * shape.entries; d *= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, d);
    }
    if (active && entry == 0) static_cast<T*>(args.out)[row * args.batch + sample] = sum;
  }
}

template <typename T>
void run(const ApplyRequest& args, Launcher& launch) {
  if (args.rows == 0 || args.batch == 0) return;
  const ApplyShape shape = ApplyShape::of(args);
  const int64_t warps = ceil_div<int64_t>(args.rows, shape.rows) * shape.tiles;
  launch_threads(launch, "apply", apply_kernel<T>, warps * kWarp, args, shape);
}

}  // namespace bppsa::cuda
