#pragma once
// What the operators call: the layers of every cell and type, each compiled by itself in
// recurrent_cell.cu, so that they can be compiled side by side.

#include <string>

#include "../../cells/list.h"
#include "../../cpu/kernels.h"
#include "../launcher.cuh"
#include "cells.cuh"
#include "views.cuh"

namespace bppsa::cuda {

template <typename Real>
struct ForwardRequest {
  ForwardView<Real> view;  // its input side is filled in by the layer
  Inputs<Real> x;
  int64_t I;
  Projection<Real> projection;  // with it, `view` has P outputs
  Real* m;                      // (T, B, H): what is projected; null not to keep it
};

template <typename Real>
struct BackwardRequest {
  // With a projection grad_output, grad_h_n and grad_h0 have P numbers, and the tape's output is m.
  // `rows` is null, or where to leave the gate gradients.
  BackwardView<Real> view;
  Inputs<Real> x;
  int64_t I;
  const Real *w_ih, *b_ih, *b_hh;
  Projection<Real> projection;
  Plan plan;
  Real* grad_x;  // null if not wanted
  ParameterGradients<Real> parameters;
  Real* grad_w_hr;
};

/// Fills what the request's view points to.
template <class Cell>
void layer_forward(const ForwardRequest<typename Cell::scalar_t>& request, Launcher& launch);

/// Fills all gradients that are wanted. A tape without the gates that its cell keeps has them
/// computed again.
template <class Cell>
void layer_backward(const BackwardRequest<typename Cell::scalar_t>& request, Launcher& launch);

/// Calls run(Cell{}) for the cell's name; false if there is none.
template <typename Real, class Run>
bool with_cell(const std::string& name, Run run) {
#define BPPSA_RUN_CELL(NAME, CELL) \
  if (name == #NAME) return run(CELL<Real>{}), true;
  BPPSA_CELLS(BPPSA_RUN_CELL)
#undef BPPSA_RUN_CELL
  return false;
}

}  // namespace bppsa::cuda
