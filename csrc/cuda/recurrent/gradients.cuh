#pragma once
// What follows the scan: from the gate gradients D (T * B, kRows * H) of all steps,
//
//   [grad w_hh | grad w_ih | grad b] = Dᵀ [h_{t-1} | x_t | 1]      one product for all parameters
//   grad x = D w_ih
//
// For GRU D has four rows a unit, n, r, z, q, of which w_ih and b_ih own the first three and w_hh
// and b_hh the last three; of the product's four blocks two halves are not needed.

#include "gemm.cuh"
#include "walk.cuh"

namespace bppsa::cuda {

/// Rows of the weights, by row m of D (H of each kind); -1: none.
template <class Cell>
BPPSA_DEVICE int input_row(int m, int H) {
  if constexpr (Cell::kRows == Cell::kGates) return m;
  return m < H ? m + 2 * H : m < 3 * H ? m - H : -1;
}
template <class Cell>
BPPSA_DEVICE int recurrent_row(int m, int H) {
  return m - (Cell::kRows - Cell::kGates) * H;
}

// x (T, B, I): numbers side by side, any strides of t and b.
template <typename T>
struct Inputs {
  const T* data;
  int64_t step, sample;
  int64_t B;

  BPPSA_DEVICE T operator()(int64_t row, int64_t i) const {  // row = t * B + b, below 2^32
    const uint32_t t = static_cast<uint32_t>(row) / static_cast<uint32_t>(B);
    return data[t * step + (row - t * B) * sample + i];
  }
};

template <typename T>
struct GateRows {  // D as the left operand, summed over its rows
  static constexpr bool kAlongK = false;
  const T* data;
  int64_t pitch;
  BPPSA_DEVICE T operator()(int64_t k, int64_t m) const { return data[k * pitch + m]; }
};

template <typename T>
struct StepInputs {  // [h_{t-1} | x_t | 1]
  static constexpr bool kAlongK = false;
  const T *output, *h0;
  Inputs<T> x;
  int64_t rows, B;  // rows = T * B
  int H, I;
  bool reverse;

  BPPSA_DEVICE T operator()(int64_t k, int64_t n) const {
    if (n < H) {
      const int64_t before = reverse ? k + B : k - B;
      if (before >= 0 && before < rows) return output[before * H + n];
      return h0 ? h0[(reverse ? before - rows : k) * H + n] : T(0);
    }
    return n < H + I ? x(k, n - H) : T(1);
  }
};

template <typename T>
struct Partials {
  T* data;
  int64_t M, N;
  BPPSA_DEVICE void operator()(int64_t split, int64_t m, int64_t n, T value) const {
    data[(split * M + m) * N + n] = value;
  }
};

template <typename T>
struct ParameterGradients {  // null: not wanted
  T *w_ih, *w_hh, *b_ih, *b_hh;

  explicit operator bool() const { return w_ih || w_hh || b_ih || b_hh; }
};

constexpr int kSumThreads = 256;

// Adds the parts up, 32 numbers a block; warp w takes parts w, w + 8, … .
template <class Cell>
__global__ void __launch_bounds__(kSumThreads)
    sum_partials_kernel(Partials<typename Cell::scalar_t> partials, int64_t splits, int H, int I,
                        ParameterGradients<typename Cell::scalar_t> to) {
  using T = typename Cell::scalar_t;
  constexpr int kWarps = kSumThreads / 32;
  T* const sums = reinterpret_cast<T*>(shared_memory());
  const int64_t count = partials.M * partials.N;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t task = blockIdx.x; task < ceil_div<int64_t>(count, 32); task += gridDim.x) {
    const int64_t e = task * 32 + lane;
    T sum = 0;
    if (e < count) {
#pragma unroll 8
      for (int64_t split = warp; split < splits; split += kWarps) {
        sum += partials.data[split * count + e];
      }
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && e < count) {
      for (int w = 1; w < kWarps; ++w) sum += sums[w * 32 + lane];
      const int m = static_cast<int>(e / partials.N), n = static_cast<int>(e % partials.N);
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
  using T = typename Cell::scalar_t;
  const int64_t rows = view.T_ * view.B, M = int64_t{Cell::kRows} * view.H, N = view.H + I + 1;
  const int64_t splits = gemm_splits(gemm_tiles(M, N), rows, 64, int64_t{8} * launch.processors);
  const Partials<T> partials{launch.template allocate<T>(splits * M * N), M, N};
  gemm<T>(GateRows<T>{view.rows, M},
          StepInputs<T>{view.tape.output, view.tape.h0, x, rows, view.B, view.H, I, view.reverse},
          partials, M, N, rows, splits, launch);
  launch("sum partials", sum_partials_kernel<Cell>, ceil_div<int64_t>(M * N, 32), kSumThreads,
         kSumThreads * sizeof(T), partials, splits, view.H, I, to);
}

template <typename T>
struct RowsAlongK {  // the left operand of a product over the numbers of a row
  static constexpr bool kAlongK = true;
  const T* data;
  int64_t pitch;
  BPPSA_DEVICE T operator()(int64_t k, int64_t m) const { return data[m * pitch + k]; }
};

template <class Cell>
struct InputWeights {  // w_ih by row of D
  using T = typename Cell::scalar_t;
  static constexpr bool kAlongK = false;
  const T* data;
  int H, I;
  BPPSA_DEVICE T operator()(int64_t k, int64_t n) const {
    return data[int64_t{input_row<Cell>(static_cast<int>(k), H)} * I + n];
  }
};

template <typename T>
struct Whole {
  T* data;
  int64_t pitch;
  BPPSA_DEVICE void operator()(int64_t, int64_t m, int64_t n, T value) const {
    data[m * pitch + n] = value;
  }
};

/// grad_x (T, B, I), contiguous.
template <class Cell>
void input_gradient(const BackwardView<typename Cell::scalar_t>& view,
                    const typename Cell::scalar_t* w_ih, int I, typename Cell::scalar_t* grad_x,
                    Launcher& launch) {
  using T = typename Cell::scalar_t;
  gemm<T>(RowsAlongK<T>{view.rows, int64_t{Cell::kRows} * view.H},
          InputWeights<Cell>{w_ih, view.H, I}, Whole<T>{grad_x, I}, view.T_ * view.B, I,
          int64_t{Cell::kGates} * view.H, 1, launch);
}

template <typename T>
struct InputsAlongK {
  static constexpr bool kAlongK = true;
  Inputs<T> x;
  BPPSA_DEVICE T operator()(int64_t k, int64_t m) const { return x(m, k); }
};

/// x w_ihᵀ for all steps at once: (T, B, rows of w_ih).
template <typename T>
void project_inputs(const Inputs<T>& x, const T* w_ih, int64_t steps, int64_t I, int64_t rows,
                    T* projected, Launcher& launch) {
  gemm<T>(InputsAlongK<T>{x}, RowsAlongK<T>{w_ih, I}, Whole<T>{projected, rows}, steps * x.B, rows,
          I, 1, launch);
}

}  // namespace bppsa::cuda
