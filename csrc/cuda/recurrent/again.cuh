#pragma once
// The gates again, for a backward whose forward kept none of them: with all states known, the sums
// of all steps are one product, and what the cell makes of them is one kernel. Both write the
// tape's own layout, (T, B, H) times four numbers.

#include "gradients.cuh"

namespace bppsa::cuda {

template <typename T>
struct StepInputsAlongK {  // [h_{t-1} | x_t] of a row
  static constexpr bool kAlongK = true;
  StepInputs<T> inputs;
  BPPSA_DEVICE T operator()(int64_t k, int64_t m) const { return inputs(m, k); }
};

template <class Cell>
struct KeptWeights {  // what each of the four numbers of a unit is summed with
  using T = typename Cell::scalar_t;
  static constexpr bool kAlongK = true;
  const T *w_ih, *w_hh;
  int H, I;
  BPPSA_DEVICE T operator()(int64_t k, int64_t n) const {
    const int unit = static_cast<int>(n / 4), place = static_cast<int>(n % 4);
    if (k < H) {
      const int gate = Cell::recurrent_part(place);
      return gate < 0 ? T(0) : w_hh[(int64_t{gate} * H + unit) * H + k];
    }
    const int gate = Cell::input_part(place);
    return gate < 0 ? T(0) : w_ih[(int64_t{gate} * H + unit) * I + k - H];
  }
};

constexpr int kGateThreads = 256;

/// From the sums, without biases, to what the forward keeps; in place.
template <class Cell>
__global__ void __launch_bounds__(kGateThreads)
    gates_kernel(Quad<typename Cell::scalar_t>* gates, int64_t places, int H,
                 const typename Cell::scalar_t* b_ih, const typename Cell::scalar_t* b_hh) {
  using T = typename Cell::scalar_t;
  for (int64_t e = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; e < places;
       e += int64_t{gridDim.x} * blockDim.x) {
    const int unit = static_cast<int>(e % H);
    T sum[Cell::kGates] = {}, input[Cell::kGates] = {};
    Quad<T> kept = gates[e];
#pragma unroll
    for (int place = 0; place < 4; ++place) {
      const int from_state = Cell::recurrent_part(place), from_input = Cell::input_part(place);
      T value = kept.e[place];
      if (b_ih && from_input >= 0) value += b_ih[from_input * H + unit];
      if (b_hh && from_state >= 0) value += b_hh[from_state * H + unit];
      (from_state >= 0 ? sum[from_state] : input[from_input]) = value;
    }
    Cell::step(sum, input, {T(0), T(0)}, kept);
    gates[e] = kept;
  }
}

/// Fills `gates` (T, B, H) from the tape's outputs.
template <class Cell>
void gates_again(const BackwardView<typename Cell::scalar_t>& view,
                 const Inputs<typename Cell::scalar_t>& x, int64_t I,
                 const typename Cell::scalar_t* w_ih, const typename Cell::scalar_t* b_ih,
                 const typename Cell::scalar_t* b_hh, Quad<typename Cell::scalar_t>* gates,
                 Launcher& launch) {
  using T = typename Cell::scalar_t;
  const int64_t rows = view.T_ * view.B;
  const int inputs = static_cast<int>(I);
  const StepInputs<T> states{view.tape.output, view.tape.h0, x,      rows,
                             view.B,           view.H,       inputs, view.reverse};
  gemm<T>(StepInputsAlongK<T>{states}, KeptWeights<Cell>{w_ih, view.w_hh, view.H, inputs},
          Whole<T>{reinterpret_cast<T*>(gates), int64_t{4} * view.H}, rows, int64_t{4} * view.H,
          view.H + I, 1, launch);
  launch("gates", gates_kernel<Cell>, ceil_div<int64_t>(rows * view.H, kGateThreads), kGateThreads,
         0, gates, rows * view.H, view.H, b_ih, b_hh);
}

}  // namespace bppsa::cuda
