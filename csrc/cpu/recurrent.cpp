// bppsa::recurrent and bppsa::recurrent_backward on the CPU: one recurrent layer in one direction.
//
// keep: 0 nothing for a backward, 1 the least (the backward computes the gates again), 2 all.
// algorithm (of the forward): only for the autograd formula, which sees the inputs of the operator.
// wanted: bit k for the k-th result of the backward; others are tensors of size 0.
#include "../requests/from_tensors/recurrent.h"

#include "../requests/from_tensors/plan.h"
#include "huge_pages.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

// In blocks of H units, rounded up to whole vectors of 16 bytes (simd/unit_blocks.h).
int64_t kept_width_of(const RecurrentRequest& request, Keep keep) {
  const int64_t units = 16 / bytes_of(request.storage);
  const int64_t padded = (request.H + units - 1) / units * units;
  const CellRow& row = row_of(request.cell);
  if (keep == Keep::all) return row.kept * padded;
  return keep == Keep::least && row.states == 2 ? padded : 0;
}

// A contiguous tensor of t's dtype that the kernels fill, perhaps of many steps.
Tensor large_beside(const Tensor& t, Sizes size) {
  Tensor result = empty_beside(t, size);
  advise_huge_pages(result.data_ptr(), result.numel() * bytes_of(storage_of(t)));
  return result;
}

Parallel parallel_for(const RecurrentRequest& request) {
  return parallel_for_work(
      request.T * request.B * row_of(request.cell).gates * request.H * (request.I + request.P + 8),
      true);
}

}  // namespace

std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent(const std::string& cell, const Tensor& x,
                                                     const Maybe& h0, const Maybe& c0,
                                                     const Tensor& w_ih, const Tensor& w_hh,
                                                     const Maybe& b_ih, const Maybe& b_hh,
                                                     const Maybe& w_hr, bool reverse, int64_t keep,
                                                     const std::string&) {
  auto request = layer_request<RecurrentForwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, reverse);
  const int64_t T = request.T, B = request.B;
  request.kept_width = kept_width_of(request, keep_of(keep));
  Tensor output = large_beside(x, {T, B, request.P});
  Tensor kept = large_beside(x, {T, B, request.kept_width});
  Tensor h_n = empty_beside(x, {B, request.P});
  Tensor c_n = empty_beside(x, {row_of(request.cell).states == 2 ? B : 0, request.H});
  if (B == 0) return {output, h_n, c_n, kept};
  request.output = first_step(output, reverse);
  request.kept = kept.data_ptr();
  request.c_n = c_n.data_ptr();
  kernels().recurrent_forward(request, parallel_for(request));
  std::memcpy(h_n.data_ptr(), first_step(output, !reverse),
              B * request.P * bytes_of(request.storage));
  return {output, h_n, c_n, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_backward(
    const std::string& cell, const Maybe& grad_output, const Maybe& grad_h_n, const Maybe& grad_c_n,
    const Tensor& output, const Tensor& kept, const Tensor& x, const Maybe& h0, const Maybe& c0,
    const Tensor& w_ih, const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
    bool reverse, const std::string& algorithm, int64_t chunk, int64_t levels, int64_t wanted) {
  const LayerTensors layer{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  auto request = layer_request<RecurrentBackwardRequest>(cell, layer, reverse);
  check_operand(output, "output", x, {request.T, request.B, request.P});
  request.kept_width = kept.dim() == 3 ? kept.size(2) : -1;
  STD_TORCH_CHECK(request.kept_width == kept_width_of(request, Keep::least) ||
                      request.kept_width == kept_width_of(request, Keep::all),
                  "kept: wanted what a forward with keep = 1 or 2 returned");
  check_operand(kept, "kept", x, {request.T, request.B, request.kept_width});
  request.output = first_step(output, reverse);
  request.kept = kept.data_ptr();
  const BackwardResults grad =
      set_gradients(request, layer, {grad_output, grad_h_n, grad_c_n}, reverse, wanted,
                    [&](Sizes size) { return large_beside(x, size); });
  const Plan plan = plan_of(algorithm, chunk, levels);
  kernels().recurrent_backward(request, plan, parallel_for(request));
  return {grad.x, grad.h0, grad.c0, grad.w_ih, grad.w_hh, grad.b_ih, grad.b_hh, grad.w_hr};
}

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::cpu::recurrent));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::cpu::recurrent_backward));
}
