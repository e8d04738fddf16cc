// bppsa::recurrent and bppsa::recurrent_backward on CUDA: a layer in one direction; the kernels are
// in recurrent/. Arguments and results are those of requests/from_tensors/recurrent.h.
//
//   kept: nothing for a cell whose output is enough. With keep = 2 (T, B, 4 H) numbers, four a unit
//   side by side; then, of a cell with two states, T B H cell states; with w_hr T B H more, what is
//   projected. With keep = 1 (not with w_hr) the cell states alone: the backward computes the four
//   numbers again.
//
// The schemas are in the CPU library; this one only adds the implementations.

#include <string>
#include <tuple>

#include "../requests/from_tensors/plan.h"
#include "../requests/from_tensors/recurrent.h"
#include "recurrent/instances.cuh"

namespace bppsa::cuda {
namespace {

template <class Request>
Request request_for(const std::string& cell, const LayerTensors& layer, bool reverse) {
  const auto request = layer_request<Request>(cell, layer, reverse);
  STD_TORCH_CHECK(request.H >= 1 && request.H <= kMostUnits, "recurrent: H must be in 1 … ",
                  kMostUnits, ", found ", request.H);
  STD_TORCH_CHECK(request.B <= ((int64_t{1} << 31) - 1) / request.T,
                  "recurrent: T * B must be less than 2^31, found ", request.T, " * ", request.B);
  return request;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent(const std::string& cell, const Tensor& x,
                                                     const Maybe& h0, const Maybe& c0,
                                                     const Tensor& w_ih, const Tensor& w_hh,
                                                     const Maybe& b_ih, const Maybe& b_hh,
                                                     const Maybe& w_hr, bool reverse, int64_t keep,
                                                     const std::string&) {
  auto request = request_for<RecurrentForwardRequest>(
      cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, reverse);
  const Keep keeps = keep_of(keep);
  STD_TORCH_CHECK(keeps != Keep::least || !request.w_hr,
                  "keep: found 1 (little) with w_hr, wanted 0 (nothing) or 2 (everything)");
  const int64_t T = request.T, B = request.B, H = request.H;
  Launcher launch(x);
  request.kept_width = kept_width_of(request, keeps);
  Tensor output = empty_beside(x, {T, B, request.P});
  Tensor h_n = empty_beside(x, {B, request.P});
  Tensor c_n = empty_beside(x, {row_of(request.cell).states == 2 ? B : 0, H});
  Tensor kept = empty_beside(x, {T, B, request.kept_width});
  request.output = first_step(output, reverse);
  request.kept = result_data(kept);
  request.c_n = result_data(c_n);
  const int most = most_units(request, launch.shared_limit);
  STD_TORCH_CHECK(keeps == Keep::nothing || H <= most, "recurrent: H: found ", H,
                  ", wanted at most ", most, " for a backward on this device");
  with_cell(request, [&](auto cell) {
    layer_forward<typename decltype(cell)::type>(request, h_n.data_ptr(), launch);
  });
  return {output, h_n, c_n, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_backward(
    const std::string& cell, const Maybe& grad_output, const Maybe& grad_h_n, const Maybe& grad_c_n,
    const Tensor& output, const Tensor& kept, const Tensor& x, const Maybe& h0, const Maybe& c0,
    const Tensor& w_ih, const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh, const Maybe& w_hr,
    bool reverse, const std::string& algorithm, int64_t chunk, int64_t levels, int64_t wanted) {
  const LayerTensors layer{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  auto request = request_for<RecurrentBackwardRequest>(cell, layer, reverse);
  const Plan plan = plan_of(algorithm, chunk, levels);
  const int64_t T = request.T, B = request.B;
  check_operand(output, "output", x, {T, B, request.P});
  request.kept_width = kept.dim() == 3 ? kept.size(2) : -1;
  STD_TORCH_CHECK(request.kept_width == kept_width_of(request, Keep::all) ||
                      (!request.w_hr && request.kept_width == kept_width_of(request, Keep::least)),
                  "kept: wanted what a forward with keep = 1 or 2 returned");
  check_operand(kept, "kept", x, {T, B, request.kept_width});
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(kept.const_data_ptr()) % 16 == 0,
                  "kept: wanted the very tensor that the forward returned");
  Launcher launch(x);
  request.output = first_step(output, reverse);
  request.kept = kept.data_ptr();
  const BackwardResults grad =
      set_gradients(request, layer, {grad_output, grad_h_n, grad_c_n}, reverse, wanted,
                    [&](Sizes size) { return empty_beside(x, size); });
  with_cell(request, [&](auto cell) {
    layer_backward<typename decltype(cell)::type>(request, plan, launch);
  });
  return {grad.x, grad.h0, grad.c0, grad.w_ih, grad.w_hh, grad.b_ih, grad.b_hh, grad.w_hr};
}

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::cuda::recurrent));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::cuda::recurrent_backward));
}
