// bppsa::recurrent_ragged and bppsa::recurrent_ragged_backward: a layer over samples of different
// lengths, forwards in time, by a linear scan; on the CPU.
//
//   as bppsa::recurrent, and
//   lengths (B,) int64: of sample b the steps from lengths[b] on are padding
//   groups: how many groups of neighbours are walked by themselves, best with falling lengths
//
// In padding output is 0, or what follows from x, and no gradient may enter. c_n is c of the last
// step, so that x must let c stand still there; h_n has no meaning.
#pragma once

#include "recurrent.h"

namespace bppsa {

template <class Request>
void set_lengths(Request& request, const Tensor& lengths, int64_t groups) {
  const int64_t B = request.B;
  STD_TORCH_CHECK(lengths.scalar_type() == ScalarType::Long && lengths.is_cpu() &&
                      lengths.is_contiguous() && lengths.dim() == 1 && lengths.size(0) == B,
                  "lengths: wanted (B,) int64 on the CPU, contiguous");
  STD_TORCH_CHECK(groups >= 1 && groups <= std::max<int64_t>(B, 1), "groups: found ", groups,
                  ", wanted 1 to B");
  request.lengths = data<int64_t>(lengths), request.groups = groups;
  for (int64_t b = 0; b < B; ++b)
    STD_TORCH_CHECK(request.lengths[b] >= 1 && request.lengths[b] <= request.T, "lengths: found ",
                    request.lengths[b], ", wanted 1 to T");
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent_ragged(
    const std::string& cell, const Tensor& x, const Maybe& h0, const Maybe& c0, const Maybe& w_ih,
    const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr, int64_t keep,
    const Tensor& lengths, int64_t groups) {
  const LayerTensors in{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  auto request = layer_request<Device, RecurrentForwardRequest>(cell, in, false);
  set_lengths(request, lengths, groups);
  return run_forward<Device>(request, x, false, keep);
}

template <class Device>
Gradients recurrent_ragged_backward(const std::string& cell, const Maybe& grad_output,
                                    const Maybe& grad_c_n, const Tensor& output, const Tensor& kept,
                                    const Tensor& x, const Maybe& h0, const Maybe& c0,
                                    const Maybe& w_ih, const Tensor& w_hh, const Maybe& b_ih,
                                    const Maybe& b_hh, const Maybe& w_hr, const Tensor& lengths,
                                    int64_t groups, int64_t wanted) {
  const LayerTensors in{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  auto request = layer_request<Device, RecurrentBackwardRequest>(cell, in, false);
  set_lengths(request, lengths, groups);
  return run_backward<Device>(request, in, {Algorithm::linear, 0, 0}, {grad_output, {}, grad_c_n},
                              output, kept, false, wanted);
}

}  // namespace bppsa
