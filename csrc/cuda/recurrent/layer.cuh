#pragma once
// A layer's forward and backward, with or without a projection.

#include "instances.cuh"
#include "projection.cuh"

namespace bppsa::cuda {

template <class Cell>
void layer_forward(const ForwardRequest<typename Cell::scalar_t>& request, Launcher& launch) {
  if (request.view.B == 0) return;
  if constexpr (Cell::kStates == 2) {
    if (request.projection.w_hr) return projected_forward<Cell>(request, launch);
  }
  plain_forward<Cell>(request, launch);
}

template <class Cell>
void layer_backward(const BackwardRequest<typename Cell::scalar_t>& request, Launcher& launch) {
  if constexpr (Cell::kStates == 2) {
    if (request.projection.w_hr) return projected_backward<Cell>(request, launch);
  }
  plain_backward<Cell>(request, launch);
}

}  // namespace bppsa::cuda
