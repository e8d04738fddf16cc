#pragma once
// What the operators call: the layers of every cell and type, each cell compiled by itself in
// recurrent_cell.cu, so that they can be compiled side by side.

#include <type_traits>

#include "../../cells/list.h"
#include "../../requests/recurrent.h"
#include "../device/launcher.cuh"
#include "cell.cuh"

namespace bppsa::cuda {

/// Numbers that the forward keeps at each step and sample; with a projection also what it projects.
inline int64_t kept_width_of(const RecurrentRequest& request, Keep keep) {
  const CellRow& row = row_of(request.cell);
  if (keep == Keep::all && row.kept > 0) return (row.kept + (request.w_hr ? 1 : 0)) * request.H;
  return keep == Keep::least && row.states == 2 ? request.H : 0;
}

/// The most units of which a backward runs on the device.
inline int most_units(const RecurrentRequest& request, size_t shared_limit) {
  const int gates = row_of(request.cell).gates;
  return request.storage == Storage::f64 ? most_units<double>(gates, shared_limit)
                                         : most_units<float>(gates, shared_limit);
}

/// Fills what the request points to, and h_n (B, P).
template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, void* h_n, Launcher& launch);

/// Fills all gradients that are wanted. Where the forward has kept the least, it computes the rest
/// again.
template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan, Launcher& launch);

#define CELL(name, formula, ...) struct formula;
BPPSA_CELLS(CELL)
#undef CELL

/// Calls run(std::type_identity<Cell>{}) for the cell and the type of a request.
template <class Run>
void with_cell(const RecurrentRequest& request, const Run& run) {
  const auto with = [&](auto zero) {
    switch (request.cell) {
#define CELL(name, formula, ...) \
  case CellKind::name:           \
    return run(std::type_identity<Cell<formula, decltype(zero)>>{});
      BPPSA_CELLS(CELL)
#undef CELL
    }
  };
  request.storage == Storage::f64 ? with(double{}) : with(float{});
}

}  // namespace bppsa::cuda
