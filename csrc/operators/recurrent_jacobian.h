// bppsa::recurrent_jacobian: the Jacobian of all steps of a recurrent layer, (B, S, S), of what its
// forward put out and kept. Row i is the gradient at the first state of unit i of the last one;
// S = P, and H more for an LSTM's c.
#pragma once

#include "recurrent.h"

namespace bppsa {

template <class Device>
Tensor recurrent_jacobian(const std::string& cell, const Tensor& output, const Tensor& kept,
                          const Tensor& x, const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
                          const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh,
                          const Maybe& w_hr, bool reverse) {
  auto request = layer_request<Device, RecurrentJacobianRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, reverse);
  const int64_t T = request.T, B = request.B, P = request.P;
  operand(output, "output", x, {T, B, P});
  request.output = first_step(output, reverse);
  keep_whole<Device>(request, kept, x);
  const int64_t S = P + (row_of(request.cell).states == 2 ? request.H : 0);
  const Tensor jacobian = empty_beside(x, {B, S, S});
  request.jacobian = result_data(jacobian);
  if (B > 0) Device::run(request);
  return jacobian;
}

}  // namespace bppsa
