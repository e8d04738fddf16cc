#pragma once
// What follows the scan: from the gate gradients D (T * B, kRows * H) of all steps,
//
//   [grad w_hh | grad w_ih | grad b] = Dᵀ [h_{t-1} | x_t | 1]      one product for all parameters
//   grad x = D w_ih
//
// For GRU D has four rows a unit, n, r, z, q, of which w_ih and b_ih own the first three and w_hh
// and b_hh the last three; of the product's four blocks two halves are not needed.

#include "../device/threads.cuh"
#include "cell.cuh"
#include "operands.cuh"

namespace bppsa::cuda {

/// Rows of the weights, by row m of D (H of each kind); -1: none.
template <class Cell>
BPPSA_DEVICE int input_row(int m, int H) {
  int row = Cell::kRows == Cell::kGates ? m : -1;
#pragma unroll
  for (int block = Cell::kGates - 1; block >= 0; --block) {
    if (m < (block + 1) * H) row = m + (Cell::input_gate(block) - block) * H;
  }
  return row;
}
template <class Cell>
BPPSA_DEVICE int recurrent_row(int m, int H) {
  return m - Cell::kFirstRecurrentRow * H;
}

constexpr int kSumThreads = 256;

// Adds the parts up, 32 numbers a block; warp w takes parts w, w + 8, … .
template <class Cell>
__global__ void __launch_bounds__(kSumThreads)
    sum_partials_kernel(const typename Cell::scalar_t* partials, int64_t splits, int H, int I,
                        ParameterGradients<typename Cell::scalar_t> to) {
  using Real = typename Cell::scalar_t;
  constexpr int kWarps = kSumThreads / 32;
  Real* const sums = reinterpret_cast<Real*>(shared_memory());
  const int64_t N = H + I + 1, count = Cell::kRows * H * N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t task = blockIdx.x; task < ceil_div<int64_t>(count, 32); task += gridDim.x) {
    const int64_t e = task * 32 + lane;
    Real sum = 0;
    if (e < count) {
#pragma unroll 8
      for (int64_t split = warp; split < splits; split += kWarps) {
        sum += partials[split * count + e];
      }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && e < count) {
      for (int w = 1; w < kWarps; ++w) sum += sums[w * 32 + lane];
      const int m = static_cast<int>(e / N), n = static_cast<int>(e % N);
      const int ih = input_row<Cell>(m, H), hh = recurrent_row<Cell>(m, H);
      if (n < H) {
        if (to.w_hh && hh >= 0) to.w_hh[int64_t{hh} * H + n] = sum;
      } else if (n < H + I) {
        if (to.w_ih && ih >= 0) to.w_ih[int64_t{ih} * I + n - H] = sum;
      } else {
        if (to.b_ih && ih >= 0) to.b_ih[ih] = sum;
        if (to.b_hh && hh >= 0) to.b_hh[hh] = sum;
      }
    }
    __syncthreads();  // the next task reuses the shared memory
  }
}

template <class Cell>
void parameter_gradients(const BackwardView<typename Cell::scalar_t>& view,
                         const Inputs<typename Cell::scalar_t>& x, int I,
                         const ParameterGradients<typename Cell::scalar_t>& to, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const int64_t rows = view.T * view.B, M = int64_t{Cell::kRows} * view.H, N = view.H + I + 1;
  const int64_t splits = gemm_splits(M, N, rows, launch);
  Real* const partials = launch.template allocate<Real>(splits * M * N);
  gemm<true>(along_columns<Real>(view.rows, M),
             AlongColumns<StepInputs<Real>>{step_inputs(view, x, I)}, M, N, rows, partials, launch,
             splits);
  launch("sum partials", sum_partials_kernel<Cell>, ceil_div<int64_t>(M * N, 32), kSumThreads,
         kSumThreads * sizeof(Real), partials, splits, view.H, I, to);
}

constexpr int kRowsOfPart = 64;

/// A part for each kRowsOfPart rows (step, sample): of peepholes, the sums of each gate's gradient
/// times what it has seen of c, the last one's that after the step. `parts`: (…, kGates, H).
template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    peephole_parts_kernel(BackwardView<typename Cell::scalar_t> view, int64_t count,
                          typename Cell::scalar_t* parts) {
  using Real = typename Cell::scalar_t;
  const int64_t rows = view.T * view.B, width = int64_t{Cell::kGates} * view.H;
  for_each_thread(count * width, [&](int64_t e) {
    const int64_t first = e / width * kRowsOfPart, gate = e % width / view.H, unit = e % view.H;
    const int64_t end = smaller<int64_t>(first + kRowsOfPart, rows);
    Real sum = 0;
    for (int64_t row = first; row < end; ++row) {
      const int64_t place = row * view.H + unit;
      const Real c = gate == Cell::kGates - 1 ? view.tape.c[place] : view.c_before(place);
      sum += view.rows[(row * Cell::kRows + gate) * view.H + unit] * c;
    }
    parts[e] = sum;
  });
}

template <class Cell>
struct InputWeights {  // w_ih by row of D
  using Real = typename Cell::scalar_t;
  const Real* data;
  int H, I;
  BPPSA_DEVICE Real operator()(int64_t row, int64_t n) const {
    return data[int64_t{input_row<Cell>(static_cast<int>(row), H)} * I + n];
  }
};

/// grad_x (T, B, kGates * H) where there is no w_ih: the gates' gradients, in torch's order.
template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    gate_gradients_kernel(BackwardView<typename Cell::scalar_t> view,
                          typename Cell::scalar_t* grad_x) {
  const int64_t width = int64_t{Cell::kGates} * view.H;
  for_each_thread(view.T * view.B * width, [&](int64_t e) {
    const int64_t row = e / width;
    const int m = static_cast<int>(e % width);
    grad_x[row * width + input_row<Cell>(m, view.H)] = view.rows[row * Cell::kRows * view.H + m];
  });
}

/// grad_x (T, B, I), contiguous.
template <class Cell>
void input_gradient(const BackwardView<typename Cell::scalar_t>& view,
                    const typename Cell::scalar_t* w_ih, int I, typename Cell::scalar_t* grad_x,
                    Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if (!w_ih)
    return launch_threads(launch, "gate gradients", gate_gradients_kernel<Cell>,
                          view.T * view.B * Cell::kGates * view.H, view, grad_x);
  gemm(along_rows<Real>(view.rows, int64_t{Cell::kRows} * view.H),
       AlongColumns<InputWeights<Cell>>{{w_ih, view.H, I}}, view.T * view.B, I,
       int64_t{Cell::kGates} * view.H, grad_x, launch);
}

}  // namespace bppsa::cuda
