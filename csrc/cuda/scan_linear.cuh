#pragma once
// The linear scan: T matrix-vector steps, in one of two mappings.
//   - One block per sample walks the whole chain in one launch (replay.cuh): a step costs about a
//     barrier, and the block's multiprocessor alone must read the matrix.
//   - One launch per step, all multiprocessors on it: for few samples of large matrices, which one
//     multiprocessor takes longer to read than a launch takes, and for vectors that are too long
//     for shared memory.

#include "replay.cuh"

namespace bppsa::cuda {

// About what one multiprocessor reads in the time of four launches.
constexpr int64_t kWideBytes = int64_t{1} << 20;
constexpr int kWideThreads = 128;  // small blocks, so that one step makes many

inline bool walk_fits(int H, size_t acc_size, const Launcher& launch) {
  return walk_shared(H, acc_size) <= launch.shared_limit;
}

// y = A[i] x + u[i], or u[T] for i = T, and out[i] = y. A block works on one (pass of rows,
// sample); x and y are (B, H) in the type of the arithmetic.
template <class Cell>
__global__ void __launch_bounds__(kWideThreads)
    wide_step_kernel(Chain<Cell> chain, Vectors<typename Cell::scalar_t> out, int64_t i,
                     Carries<typename Cell::acc_t> x, Carries<typename Cell::acc_t> y) {
  using acc_t = typename Cell::acc_t;
  const bool columns_fast = chain.cell.columns_fast();
  const Lanes lanes(lane_columns<Large>(chain.H, columns_fast), columns_fast);
  const int64_t passes = ceil_div(chain.H, lanes.rows);
  for (int64_t task = blockIdx.x; task < passes * chain.B; task += gridDim.x) {
    const int64_t b = task / passes;
    const int r = static_cast<int>(task % passes) * lanes.rows + lanes.row;
    const Chain<Cell> own = chain.from_sample(b);
    const acc_t* factor = x(0, b);
    acc_t part = 0;
    if (i < chain.T && r < chain.H) {
#pragma unroll 4
      for (int c = lanes.column; c < chain.H; c += lanes.columns) {
        part += Cell::value(own.cell.fetch(i, r, c)) * factor[c];
      }
    }
    const acc_t sum = lanes.sum(part);
    if (lanes.column == 0 && r < chain.H) {
      const acc_t value = sum + static_cast<acc_t>(own.grad(i, r));
      y(0, b)[r] = value;
      out.from_sample(b)(i, r) = static_cast<typename Cell::scalar_t>(value);
    }
  }
}

template <class Cell>
void scan_wide(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
               Launcher& launch) {
  using acc_t = typename Cell::acc_t;
  const int64_t rows = kWideThreads / lane_columns<Large>(chain.H, chain.cell.columns_fast());
  const int64_t tasks = ceil_div<int64_t>(chain.H, rows) * chain.B;
  acc_t* const scratch = launch.template allocate<acc_t>(2 * chain.B * chain.H);
  Carries<acc_t> x{scratch, chain.B, chain.H}, y{scratch + chain.B * chain.H, chain.B, chain.H};
  for (int64_t i = chain.T; i >= 0; --i) {
    launch("wide step", wide_step_kernel<Cell>, tasks, kWideThreads, 0, chain, out, i, x, y);
    const Carries<acc_t> before = x;
    x = y;
    y = before;
  }
}

template <class Cell>
void scan_linear(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
                 Launcher& launch) {
  using acc_t = typename Cell::acc_t;
  const int64_t matrix = int64_t{chain.H} * chain.H * sizeof(typename Cell::scalar_t);
  const bool few = 4 * chain.B <= launch.processors;
  if (!walk_fits(chain.H, sizeof(acc_t), launch) || (few && matrix >= kWideBytes)) {
    return scan_wide(chain, out, launch);
  }
  replay(chain, out, chain.T, 1, Carries<acc_t>{nullptr, chain.B, chain.H}, launch);
}

}  // namespace bppsa::cuda
