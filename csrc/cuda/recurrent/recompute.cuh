#pragma once
// The gates again, for a backward whose forward kept none of them: with all states known, the sums
// of all steps are one product, and what the cell makes of them is one kernel. Both write the
// tape's own layout, (T, B, H) times four numbers.

#include "../device/threads.cuh"
#include "cell.cuh"
#include "operands.cuh"
#include "request_views.cuh"

namespace bppsa::cuda {

template <class Cell>
struct KeptWeights {  // what each of the four numbers of a unit is summed with
  using Real = typename Cell::scalar_t;
  const Real *w_ih, *w_hh;
  int H, I;
  BPPSA_DEVICE Real operator()(int64_t n, int64_t k) const {
    const int unit = static_cast<int>(n / 4), place = static_cast<int>(n % 4);
    if (k < H) {
      const int gate = Cell::recurrent_part(place);
      return gate < 0 ? Real(0) : w_hh[(int64_t{gate} * H + unit) * H + k];
    }
    const int gate = Cell::input_part(place);
    if (gate < 0) return Real(0);
    const int64_t row = int64_t{gate} * H + unit;
    return w_ih ? w_ih[row * I + k - H] : Real(row == k - H);
  }
};

/// From the sums, without biases, to what the forward keeps; in place.
template <class Cell>
__global__ void __launch_bounds__(kThreadsOfBlock)
    gates_kernel(Quad<typename Cell::scalar_t>* gates, int64_t places, int H,
                 const typename Cell::scalar_t* b_ih, const typename Cell::scalar_t* b_hh,
                 BackwardView<typename Cell::scalar_t> view) {
  using Real = typename Cell::scalar_t;
  for_each_thread(places, [&](int64_t e) {
    const int unit = static_cast<int>(e % H);
    Quad<Real> kept = gates[e];
    Real slot[Cell::kSlots];
#pragma unroll
    for (int s = 0; s < Cell::kSlots; ++s) {
      const int from_state = Cell::recurrent_part(s), from_input = Cell::input_part(s);
      slot[s] = kept.e[s];
      if (b_ih && from_input >= 0) slot[s] += b_ih[from_input * H + unit];
      if (b_hh && from_state >= 0 && !Cell::kPeeps) slot[s] += b_hh[from_state * H + unit];
    }
    UnitState<Real> before{Real(0), Real(0)};
    if constexpr (Cell::kPeeps) before.c = view.c_before(e);
    const Quad<Real> p = Cell::kPeeps ? Cell::peepholes(b_hh, H, unit) : Quad<Real>{};
    Cell::finish(slot, before, kept, p.e);
    gates[e] = kept;
  });
}

/// Fills `gates` (T, B, H) from the tape's outputs.
template <class Cell>
void recompute_gates(const RecurrentRequest& request,
                     const BackwardView<typename Cell::scalar_t>& view,
                     Quad<typename Cell::scalar_t>* gates, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  const int64_t steps = view.T * view.B;
  const int I = static_cast<int>(request.I);
  gemm(AlongRows<StepInputs<Real>>{step_inputs(view, inputs_of<Real>(request), I)},
       AlongRows<KeptWeights<Cell>>{{in<Real>(request.w_ih), view.w_hh, view.H, I}}, steps,
       int64_t{4} * view.H, view.H + I, reinterpret_cast<Real*>(gates), launch);
  launch_threads(launch, "gates", gates_kernel<Cell>, steps * view.H, gates, steps * view.H, view.H,
                 in<Real>(request.b_ih), in<Real>(request.b_hh), view);
}

}  // namespace bppsa::cuda
