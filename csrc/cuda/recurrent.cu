// bppsa::recurrent and bppsa::recurrent_backward on CUDA: checks, types and strides; the kernels
// are in recurrent/.
//
//   T steps, B batch, I input, H state, P what of it is put out, G gates (rnn 1, gru 3, lstm 4)
//   x (T, B, I), any strides of t and b; h0 (B, P), c0 (B, H); w_ih (G * H, I), w_hh (G * H, P),
//   biases (G * H), w_hr (P, H) or none (then P = H), contiguous; one dtype, float32 or float64.
//   output (T, B, P), h_n (B, P), c_n (B, H).
//   kept: nothing for rnn, whose output is enough. With keep = 2, for gru (T, B, 4 H), four numbers
//   a unit side by side; for lstm (T, B, 5 H), its first 4 T B H numbers the same, the others the
//   cell states; with w_hr, T B H more, what is projected. With keep = 1, for lstm without w_hr the
//   cell states (T, B, H), for gru nothing: the backward computes the four numbers again.
//
// The schemas are in the CPU library; this one only adds the implementations.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <tuple>

#include "../cpu/torch_glue.h"
#include "recurrent/instances.cuh"
#include "recurrent/shape.cuh"

namespace bppsa::cuda {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Maybe = std::optional<Tensor>;
using Sizes = std::initializer_list<int64_t>;

void check_contiguous(const Tensor& tensor, const char* name, const Tensor& like, Sizes sizes) {
  bool same = tensor.dim() == static_cast<int64_t>(sizes.size()) && tensor.is_contiguous() &&
              tensor.scalar_type() == like.scalar_type() && tensor.is_cuda() &&
              tensor.get_device_index() == like.get_device_index();
  int64_t d = 0;
  for (int64_t n : sizes) same = same && tensor.size(d++) == n;
  STD_TORCH_CHECK(same, "recurrent: ", name,
                  ": wanted another shape, dtype or device, contiguous, on x's device");
}

void check_contiguous(const Maybe& tensor, const char* name, const Tensor& like, Sizes sizes) {
  if (tensor.has_value()) check_contiguous(*tensor, name, like, sizes);
}

void check_inner(const Tensor& tensor, const char* name) {
  STD_TORCH_CHECK(tensor.stride(2) == 1 || tensor.size(2) <= 1 || tensor.numel() == 0,
                  "recurrent: ", name, ": wanted its last dimension contiguous, found a stride of ",
                  tensor.stride(2));
}

template <typename Real>
const Real* data_of(const Tensor& tensor) {
  return static_cast<const Real*>(tensor.const_data_ptr());
}
template <typename Real>
const Real* data_of(const Maybe& tensor) {
  return tensor.has_value() ? data_of<Real>(*tensor) : nullptr;
}
template <typename Real>
Real* out_of(Tensor& tensor) {
  return tensor.numel() > 0 ? static_cast<Real*>(tensor.mutable_data_ptr()) : nullptr;
}

// The tensors that describe a layer, and what follows from their shapes.
struct Layer {
  const std::string& cell;
  const Tensor& x;
  const Maybe &h0, &c0;
  const Tensor &w_ih, &w_hh;
  const Maybe &b_ih, &b_hh, &w_hr;
  int64_t T, B, I, H, P, gates;
  bool lstm, keeps;

  Layer(const std::string& cell, const Tensor& x, const Maybe& h0, const Maybe& c0,
        const Tensor& w_ih, const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh,
        const Maybe& w_hr)
      : cell(cell),
        x(x),
        h0(h0),
        c0(c0),
        w_ih(w_ih),
        w_hh(w_hh),
        b_ih(b_ih),
        b_hh(b_hh),
        w_hr(w_hr) {
    lstm = cell == "lstm";
    keeps = lstm || cell == "gru";
    gates = lstm ? 4 : cell == "gru" ? 3 : 1;
    STD_TORCH_CHECK(keeps || cell == "rnn_tanh" || cell == "rnn_relu", "recurrent: cell: found '",
                    cell, "', wanted 'rnn_tanh', 'rnn_relu', 'gru' or 'lstm'");
    STD_TORCH_CHECK(lstm || !w_hr.has_value(), "recurrent: w_hr: only an LSTM has projections");
    STD_TORCH_CHECK(x.is_cuda(), "recurrent: x: wanted a CUDA tensor");
    STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float || x.scalar_type() == ScalarType::Double,
                    "recurrent: x: wanted float32 or float64");
    STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1,
                    "recurrent: x: wanted (T, B, I) with T >= 1, found ", x.dim(), " dimensions");
    STD_TORCH_CHECK(w_hh.dim() == 2, "recurrent: w_hh: wanted (G * H, P), found ", w_hh.dim(),
                    " dimensions");
    check_inner(x, "x");
    T = x.size(0), B = x.size(1), I = x.size(2), H = w_hh.size(0) / gates;
    P = w_hr.has_value() ? w_hh.size(1) : H;
    STD_TORCH_CHECK(P >= 1, "recurrent: w_hh: wanted at least one column");
    STD_TORCH_CHECK(H >= 1 && H <= kMostUnits, "recurrent: H must be in 1 … ", kMostUnits,
                    ", found ", H);
    STD_TORCH_CHECK(B <= ((int64_t{1} << 31) - 1) / T,
                    "recurrent: T * B must be less than 2^31, found ", T, " * ", B);
    check_contiguous(w_ih, "w_ih", x, {gates * H, I});
    check_contiguous(w_hh, "w_hh", x, {gates * H, P});
    check_contiguous(w_hr, "w_hr", x, {P, H});
    check_contiguous(b_ih, "b_ih", x, {gates * H});
    check_contiguous(b_hh, "b_hh", x, {gates * H});
    check_contiguous(h0, "h0", x, {B, P});
    check_contiguous(c0, "c0", x, {B, H});
  }

  int64_t kept_width(int64_t keep) const {
    if (keep == 0 || !keeps) return 0;
    if (keep == 1) return lstm ? H : 0;
    return (w_hr.has_value() ? 6 : lstm ? 5 : 4) * H;
  }

  template <class Run>
  void dispatch(Run run) const {
    x.scalar_type() == ScalarType::Float ? with_cell<float>(cell, run)
                                         : with_cell<double>(cell, run);
  }

  /// Fills in what the requests of both directions say of the layer.
  template <typename Real, class Request>
  void describe(Request& request, bool reverse) const {
    request.view.T = T, request.view.B = B, request.view.H = static_cast<int>(H);
    request.view.reverse = reverse;
    request.view.w_hh = data_of<Real>(w_hh);
    request.x = {data_of<Real>(x), x.stride(0), x.stride(1), B};
    request.I = I;
    request.projection = {static_cast<int>(P), data_of<Real>(w_hh), data_of<Real>(w_hr),
                          data_of<Real>(h0)};
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent_cuda(const std::string& cell, const Tensor& x,
                                                          const Maybe& h0, const Maybe& c0,
                                                          const Tensor& w_ih, const Tensor& w_hh,
                                                          const Maybe& b_ih, const Maybe& b_hh,
                                                          const Maybe& w_hr, bool reverse,
                                                          int64_t keep, const std::string&) {
  const Layer layer(cell, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr);
  const int64_t T = layer.T, B = layer.B, H = layer.H;
  STD_TORCH_CHECK(keep == 0 || keep == 2 || (keep == 1 && !w_hr.has_value()),
                  "recurrent: keep: found ", keep,
                  ", wanted 0 (nothing), 1 (little; not with w_hr) "
                  "or 2 (everything)");
  Launcher launch(x);
  Tensor output = empty_beside(x, {T, B, layer.P});
  Tensor h_n = empty_beside(x, {B, layer.P});
  Tensor c_n = empty_beside(x, {layer.lstm ? B : 0, H});
  Tensor kept = empty_beside(x, {T, B, layer.kept_width(keep)});
  layer.dispatch([&](auto zero) {
    using Cell = decltype(zero);
    using Real = typename Cell::scalar_t;
    const int64_t most = most_units<Real>(Cell::kGates, launch.shared_limit);
    STD_TORCH_CHECK(keep == 0 || H <= most, "recurrent: H: found ", H, ", wanted at most ", most,
                    " for a backward on this device");
    ForwardRequest<Real> request{};
    layer.describe<Real>(request, reverse);
    Real* const data = out_of<Real>(kept);
    const Kept<Real> parts(data, T * B * H, data && keep == 2, data && layer.lstm,
                           data && w_hr.has_value());
    ForwardView<Real>& view = request.view;
    view.w_ih = data_of<Real>(w_ih), view.b_ih = data_of<Real>(b_ih),
    view.b_hh = data_of<Real>(b_hh);
    view.h0 = data_of<Real>(h0), view.c0 = data_of<Real>(c0);
    view.output = out_of<Real>(output);
    view.gates = parts.gates, view.c = parts.c, request.m = parts.m;
    view.h_n = out_of<Real>(h_n), view.c_n = out_of<Real>(c_n);
    layer_forward<Cell>(request, launch);
  });
  return {output, h_n, c_n, kept};
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Gradients recurrent_backward_cuda(const std::string& cell, const Maybe& grad_output,
                                  const Maybe& grad_h_n, const Maybe& grad_c_n,
                                  const Tensor& output, const Tensor& kept, const Tensor& x,
                                  const Maybe& h0, const Maybe& c0, const Tensor& w_ih,
                                  const Tensor& w_hh, const Maybe& b_ih, const Maybe& b_hh,
                                  const Maybe& w_hr, bool reverse, const std::string& algorithm,
                                  int64_t chunk, int64_t levels, int64_t wanted) {
  const Layer layer(cell, x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr);
  const int64_t T = layer.T, B = layer.B, I = layer.I, H = layer.H, rows = layer.gates * H;
  const Plan plan = plan_of(algorithm, chunk, levels);
  const bool projected = w_hr.has_value();
  const bool recomputes =
      layer.keeps && !projected && kept.dim() == 3 && kept.size(2) == layer.kept_width(1);
  check_contiguous(output, "output", x, {T, B, layer.P});
  check_contiguous(kept, "kept (of a forward with keep = 1 or 2)", x,
                   {T, B, layer.kept_width(recomputes ? 1 : 2)});
  STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(kept.const_data_ptr()) % 16 == 0,
                  "recurrent_backward: kept: wanted the very tensor that the forward returned");
  check_contiguous(grad_h_n, "grad_h_n", x, {B, layer.P});
  check_contiguous(grad_c_n, "grad_c_n", x, {B, H});
  if (grad_output.has_value()) {
    STD_TORCH_CHECK(grad_output->dim() == 3 && grad_output->size(0) == T &&
                        grad_output->size(1) == B && grad_output->size(2) == layer.P &&
                        grad_output->scalar_type() == x.scalar_type() && grad_output->is_cuda() &&
                        grad_output->get_device_index() == x.get_device_index(),
                    "recurrent_backward: grad_output: wanted (", T, ", ", B, ", ", layer.P,
                    ") of x's dtype and device");
    check_inner(*grad_output, "grad_output");
  }

  Launcher launch(x);
  const auto when = [&](int bit, bool possible, Sizes sizes) {
    return (wanted >> bit & 1) != 0 && possible ? empty_beside(x, sizes) : empty_beside(x, {0});
  };
  Tensor grad_x = when(0, true, {T, B, I}), grad_h0 = when(1, true, {B, layer.P});
  Tensor grad_c0 = when(2, layer.lstm, {B, H}), grad_w_ih = when(3, true, {rows, I});
  Tensor grad_w_hh = when(4, true, {rows, layer.P}), grad_b_ih = when(5, true, {rows});
  Tensor grad_b_hh = when(6, true, {rows}), grad_w_hr = when(7, projected, {layer.P, H});
  layer.dispatch([&](auto zero) {
    using Cell = decltype(zero);
    using Real = typename Cell::scalar_t;
    BackwardRequest<Real> request{};
    layer.describe<Real>(request, reverse);
    request.plan = plan;
    request.w_ih = data_of<Real>(w_ih);
    request.b_ih = data_of<Real>(b_ih), request.b_hh = data_of<Real>(b_hh);
    const Kept<Real> parts(const_cast<Real*>(data_of<Real>(kept)), T * B * H,
                           layer.keeps && !recomputes, layer.lstm, projected);
    BackwardView<Real>& view = request.view;
    view.tape = {projected ? parts.m : data_of<Real>(output), parts.gates, parts.c,
                 projected ? nullptr : data_of<Real>(h0), data_of<Real>(c0)};
    view.grad_output = data_of<Real>(grad_output);
    if (grad_output.has_value()) {
      view.grad_step = grad_output->stride(0), view.grad_sample = grad_output->stride(1);
    }
    view.grad_h_n = data_of<Real>(grad_h_n);
    view.grad_c_n = layer.lstm ? data_of<Real>(grad_c_n) : nullptr;
    view.grad_h0 = out_of<Real>(grad_h0), view.grad_c0 = out_of<Real>(grad_c0);
    request.grad_x = out_of<Real>(grad_x);
    request.parameters = {out_of<Real>(grad_w_ih), out_of<Real>(grad_w_hh), out_of<Real>(grad_b_ih),
                          out_of<Real>(grad_b_hh)};
    request.grad_w_hr = out_of<Real>(grad_w_hr);
    layer_backward<Cell>(request, launch);
  });
  return {grad_x, grad_h0, grad_c0, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_w_hr};
}

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::cuda::recurrent_cuda));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::cuda::recurrent_backward_cuda));
}
