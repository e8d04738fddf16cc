#pragma once
// A layer's forward and backward, with or without a projection.

#include "projection.cuh"

namespace bppsa::cuda {

template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, void* h_n, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if (request.B == 0) return;
  if constexpr (Cell::kStates == 2) {
    if (request.w_hr) return projected_forward<Cell>(request, out<Real>(h_n), launch);
  }
  plain_forward<Cell>(request, out<Real>(h_n), launch);
}

template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  Real* const rows =
      launch.template allocate<Real>(request.T * request.B * request.H * Cell::kRows);
  if constexpr (Cell::kStates == 2) {
    if (request.w_hr) return projected_backward<Cell>(request, plan, rows, launch);
  }
  plain_backward<Cell>(request, plan, rows, launch);
}

}  // namespace bppsa::cuda
