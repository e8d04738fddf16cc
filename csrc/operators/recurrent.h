// bppsa::recurrent and bppsa::recurrent_backward: one recurrent layer in one direction.
//
//   T steps, B batch, I input, H state, P what of it is put out, G gates
//   x (T, B, I), contiguous in I; h0 (B, P), c0 (B, H); w_ih (G H, I), w_hh (G H, P), biases (G H),
//   w_hr (P, H) or none (then P = H), contiguous; one dtype, float32 or float64
//   without w_ih x is what W_ih would make of it, (T, B, G H)
//   output (T, B, P), h_n (B, P), c_n (B, H); kept: what a forward keeps, as its device likes it
//   keep: 0 nothing for a backward, 1 the least (the backward computes the gates again), 2 all
//   wanted: bit k for the k-th result of the backward; others are tensors of size 0
//
// Device: kept_width(request, keep), -1 if it cannot keep that; a check of its own; empty(like,
// size), a tensor for a result; run(request, …).
#pragma once

#include "../cells/list.h"
#include "../requests/recurrent.h"
#include "tensors.h"

namespace bppsa {

// The tensors that describe a layer.
struct LayerTensors {
  const Tensor& x;
  const Maybe &h0, &c0;
  const Maybe& w_ih;
  const Tensor& w_hh;
  const Maybe &b_ih, &b_hh, &w_hr;
};

inline CellKind cell_of(const std::string& name) {
  std::string known;
  for (int i = 0; i < int(std::size(kCells)); ++i) {
    if (name == kCells[i].name) return CellKind(i);
    known += std::string(i ? ", '" : "'") + kCells[i].name + "'";
  }
  STD_TORCH_CHECK(false, "cell: found '", name, "', wanted one of ", known);
}

// Where a recurrence begins in a tensor that is contiguous in the last of three dimensions, time
// first; sets the strides of the others.
inline const void* steps(const Tensor& t, const char* name, const Tensor& like, Sizes size,
                         bool reverse, int64_t (&stride)[2]) {
  STD_TORCH_CHECK(
      agrees(t, like, size) && (t.stride(2) == 1 || t.size(2) <= 1 || t.numel() == 0), name,
      ": wanted (T, B, …) of the layer, of x's dtype and device, contiguous in its last "
      "dimension");
  set_strides(stride, t, reverse);
  return first_step(t, reverse);
}

// Everything but output and kept.
template <class Device, class Request>
Request layer_request(const std::string& cell, const LayerTensors& in, bool reverse) {
  const Tensor& x = in.x;
  Request request{};
  request.cell = cell_of(cell);
  request.storage = real_storage(x, "x");
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1, "x: wanted (T, B, I) with T >= 1");
  STD_TORCH_CHECK(in.w_hh.dim() == 2, "w_hh: wanted 2 dimensions");
  const CellRow& row = row_of(request.cell);
  STD_TORCH_CHECK(!in.w_hr.has_value() || row.states == 2, "w_hr: wanted none for ", cell);
  const int64_t GH = in.w_hh.size(0);
  const int64_t T = request.T = x.size(0), B = request.B = x.size(1), I = request.I = x.size(2);
  const int64_t H = request.H = GH / row.gates, P = request.P = in.w_hh.size(1);
  STD_TORCH_CHECK(H >= 1 && GH == row.gates * H && P >= 1 && (in.w_hr.has_value() || P == H),
                  "w_hh: its sizes are not those of a cell ", cell);
  STD_TORCH_CHECK(in.w_ih.has_value() || I == GH, "x: found ", I, " numbers a step, wanted ", GH,
                  ", those of the gates, as w_ih is None");
  request.x = steps(x, "x", x, {T, B, I}, reverse, request.x_stride);
  request.h0 = operand(in.h0, "h0", x, {B, P});
  request.c0 = operand(in.c0, "c0", x, {B, H});
  request.w_ih = operand(in.w_ih, "w_ih", x, {GH, I});
  request.w_hh = operand(in.w_hh, "w_hh", x, {GH, P});
  request.b_ih = operand(in.b_ih, "b_ih", x, {GH});
  request.b_hh = operand(in.b_hh, "b_hh", x, {GH});
  request.w_hr = operand(in.w_hr, "w_hr", x, {P, H});
  request.output_stride[0] = direction(reverse) * B * P, request.output_stride[1] = P;
  Device::check(request);
  return request;
}

// What a forward keeps: rows of so many numbers, of B samples a step.
inline void keep_rows(RecurrentRequest& request, int64_t width, int64_t B) {
  request.kept_width = width;
  request.kept_stride[0] = B * width, request.kept_stride[1] = width;
}

// The same, as a forward with keep = 1 or 2 returned it, or is to.
template <class Device, class Request>
void keep_whole(Request& request, const Tensor& kept, const Tensor& x) {
  const int64_t width = kept.dim() == 3 ? kept.size(2) : -1;
  keep_rows(request, width, request.B);
  STD_TORCH_CHECK(width >= 0 && (width == Device::kept_width(request, Keep::least) ||
                                 width == Device::kept_width(request, Keep::all)),
                  "kept: wanted what a forward with keep = 1 or 2 returned");
  operand(kept, "kept", x, {request.T, request.B, width});
  request.kept = result_data(kept);
}

template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> run_forward(RecurrentForwardRequest request,
                                                       const Tensor& x, bool reverse,
                                                       int64_t keep) {
  const int64_t T = request.T, B = request.B;
  STD_TORCH_CHECK(keep >= 0 && keep <= 2, "keep: found ", keep, ", wanted 0, 1 or 2");
  keep_rows(request, Device::kept_width(request, Keep(keep)), B);
  STD_TORCH_CHECK(request.kept_width >= 0,
                  "keep: found 1 (little) with w_hr, wanted 0 (nothing) or 2 (everything)");
  const Tensor output = Device::empty(x, {T, B, request.P});
  const Tensor kept = Device::empty(x, {T, B, request.kept_width});
  const Tensor h_n = empty_beside(x, {B, request.P});
  const Tensor c_n = empty_beside(x, {row_of(request.cell).states == 2 ? B : 0, request.H});
  request.output = first_step(output, reverse);
  request.kept = result_data(kept), request.c_n = result_data(c_n);
  if (B > 0) Device::run(request, Keep(keep), h_n);
  return {output, h_n, c_n, kept};
}

// The algorithm is only for the autograd formula, which sees the inputs of the operator.
template <class Device>
std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent(const std::string& cell, const Tensor& x,
                                                     const Maybe& h0, const Maybe& c0,
                                                     const Maybe& w_ih, const Tensor& w_hh,
                                                     const Maybe& b_ih, const Maybe& b_hh,
                                                     const Maybe& w_hr, bool reverse, int64_t keep,
                                                     const std::string&) {
  const LayerTensors in{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  return run_forward<Device>(layer_request<Device, RecurrentForwardRequest>(cell, in, reverse), x,
                             reverse, keep);
}

// The gradients that enter a backward.
inline void set_incoming(RecurrentBackwardRequest& request, const Maybe& grad_output,
                         const Maybe& grad_h_n, const Maybe& grad_c_n, const Tensor& x,
                         bool reverse) {
  const int64_t T = request.T, B = request.B, H = request.H, P = request.P;
  if (grad_output.has_value())
    request.grad = steps(*grad_output, "grad_output", x, {T, B, P}, reverse, request.grad_stride);
  request.grad_hn = operand(grad_h_n, "grad_h_n", x, {B, P});
  request.grad_cn = operand(grad_c_n, "grad_c_n", x, {B, H});
}

// The results of a backward that are wanted, bit by bit; others are of size 0.
template <class Device>
struct Results {
  const Tensor& x;
  int64_t wanted;

  Tensor next(void*& at, Sizes size, bool exists = true) {
    const bool is_wanted = wanted & 1;
    wanted >>= 1;
    const Tensor t = exists && is_wanted ? Device::empty(x, size) : empty_beside(x, {0});
    at = result_data(t);
    return t;
  }

  // All but the gradient of x, once they are computed.
  auto all(RecurrentBackwardRequest& request, int64_t GH, bool b_ih, bool b_hh, bool w_hr,
           const Plan& plan) {
    const int64_t I = request.I, H = request.H, P = request.P;
    const int64_t rows = std::max<int64_t>(request.windows, 1) * request.B;
    const std::tuple found{next(request.grad_h0, {rows, P}),
                           next(request.grad_c0, {rows, H}, row_of(request.cell).states == 2),
                           next(request.grad_w_ih, {GH, I}, request.w_ih),
                           next(request.grad_w_hh, {GH, P}),
                           next(request.grad_b_ih, {GH}, b_ih),
                           next(request.grad_b_hh, {GH}, b_hh),
                           next(request.grad_w_hr, {P, H}, w_hr)};
    Device::run(request, plan, x);
    return found;
  }
};

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

// The gradients of a forward's results.
struct Incoming {
  const Maybe &output, &h_n, &c_n;
};

template <class Device>
Gradients run_backward(RecurrentBackwardRequest request, const LayerTensors& in, const Plan& plan,
                       const Incoming& grad, const Tensor& output, const Tensor& kept, bool reverse,
                       int64_t wanted) {
  const Tensor& x = in.x;
  const int64_t T = request.T, B = request.B, I = request.I, P = request.P;
  operand(output, "output", x, {T, B, P});
  request.output = first_step(output, reverse);
  keep_whole<Device>(request, kept, x);
  set_incoming(request, grad.output, grad.h_n, grad.c_n, x, reverse);
  Results<Device> results{x, wanted};
  const Tensor grad_x = results.next(request.grad_x, {T, B, I});
  if (request.grad_x) request.grad_x = first_step(grad_x, reverse);
  request.grad_x_stride[0] = direction(reverse) * B * I, request.grad_x_stride[1] = I;
  return std::tuple_cat(std::tuple{grad_x},
                        results.all(request, in.w_hh.size(0), in.b_ih.has_value(),
                                    in.b_hh.has_value(), in.w_hr.has_value(), plan));
}

template <class Device>
Gradients recurrent_backward(const std::string& cell, const Maybe& grad_output,
                             const Maybe& grad_h_n, const Maybe& grad_c_n, const Tensor& output,
                             const Tensor& kept, const Tensor& x, const Maybe& h0, const Maybe& c0,
                             const Maybe& w_ih, const Tensor& w_hh, const Maybe& b_ih,
                             const Maybe& b_hh, const Maybe& w_hr, bool reverse,
                             const std::string& algorithm, int64_t chunk, int64_t levels,
                             int64_t wanted) {
  const LayerTensors in{x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr};
  const auto request = layer_request<Device, RecurrentBackwardRequest>(cell, in, reverse);
  return run_backward<Device>(request, in, plan_of(algorithm, chunk, levels),
                              {grad_output, grad_h_n, grad_c_n}, output, kept, reverse, wanted);
}

}  // namespace bppsa
