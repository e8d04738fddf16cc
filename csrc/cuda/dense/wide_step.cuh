#pragma once
// The linear scan in launches of one step each, all multiprocessors on it: for few samples of large
// matrices, which one multiprocessor takes longer to read than a launch takes, and for vectors that
// are too long for shared memory.

#include "replay.cuh"

namespace bppsa::cuda {

constexpr int kWideThreads = 128;  // small blocks, so that one step makes many

// y = A[i] x + u[i], or u[T] for i = T, and out[i] = y. A block works on one (pass of rows,
// sample); x and y are (B, H) in the type of the arithmetic.
template <typename scalar_t>
__global__ void __launch_bounds__(kWideThreads)
    wide_step_kernel(DenseChain<scalar_t> chain, Vectors<scalar_t> out, int64_t i,
                     Carries<Acc<scalar_t>> x, Carries<Acc<scalar_t>> y) {
  using acc_t = Acc<scalar_t>;
  const bool columns_fast = chain.jac_t.columns_fast();
  const Lanes lanes(lane_columns<Large>(chain.H, columns_fast), columns_fast);
  const int64_t passes = ceil_div(chain.H, lanes.rows);
  for (int64_t task = blockIdx.x; task < passes * chain.B; task += gridDim.x) {
    const int64_t b = task / passes;
    const int r = static_cast<int>(task % passes) * lanes.rows + lanes.row;
    const DenseChain<scalar_t> own = chain.from_sample(b);
    const acc_t* factor = x(0, b);
    acc_t part = 0;
    if (i < chain.T && r < chain.H) {
#pragma unroll 4
      for (int c = lanes.column; c < chain.H; c += lanes.columns) {
        part += static_cast<acc_t>(own.jac_t(i, r, c)) * factor[c];
      }
    }
    const acc_t sum = lanes.sum(part);
    if (lanes.column == 0 && r < chain.H) {
      const acc_t value = sum + static_cast<acc_t>(own.grad(i, r));
      y(0, b)[r] = value;
      out.from_sample(b)(i, r) = static_cast<scalar_t>(value);
    }
  }
}

template <typename scalar_t>
void scan_wide(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, Launcher& launch) {
  using acc_t = Acc<scalar_t>;
  const int64_t rows = kWideThreads / lane_columns<Large>(chain.H, chain.jac_t.columns_fast());
  const int64_t tasks = ceil_div<int64_t>(chain.H, rows) * chain.B;
  acc_t* const scratch = launch.template allocate<acc_t>(2 * chain.B * chain.H);
  Carries<acc_t> x{scratch, chain.B, chain.H}, y{scratch + chain.B * chain.H, chain.B, chain.H};
  for (int64_t i = chain.T; i >= 0; --i) {
    launch("wide step", wide_step_kernel<scalar_t>, tasks, kWideThreads, 0, chain, out, i, x, y);
    const Carries<acc_t> before = x;
    x = y;
    y = before;
  }
}

}  // namespace bppsa::cuda
