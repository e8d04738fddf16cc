// bppsa::recurrent and bppsa::recurrent_backward on the CPU: one recurrent layer in one direction.
//
// keep: 0 nothing for a backward, 1 the least (the backward computes the gates again), 2 all.
// algorithm (of the forward): only for the autograd formula, which sees the inputs of the operator.
// wanted: bit k for the k-th result of the backward; others are tensors of size 0.
#include "huge_pages.h"
#include "torch_glue.h"

namespace bppsa {

static RecurrentCell cell_of(const std::string& name) {
  if (name == "rnn_tanh") return RecurrentCell::rnn_tanh;
  if (name == "rnn_relu") return RecurrentCell::rnn_relu;
  if (name == "gru") return RecurrentCell::gru;
  STD_TORCH_CHECK(name == "lstm", "cell: found '", name,
                  "', wanted 'rnn_tanh', 'rnn_relu', 'gru' or 'lstm'");
  return RecurrentCell::lstm;
}

static int64_t gates_of(RecurrentCell cell) {
  return cell == RecurrentCell::lstm ? 4 : cell == RecurrentCell::gru ? 3 : 1;
}

// In blocks of H units, rounded up to whole vectors of 16 bytes (recurrent/units.h).
static int64_t kept_width_of(const RecurrentArgs& args, int64_t keep) {
  STD_TORCH_CHECK(keep >= 0 && keep <= 2, "keep: found ", keep, ", wanted 0, 1 or 2");
  const int64_t units = args.storage == Storage::f64 ? 2 : 4;
  const int64_t padded = (args.H + units - 1) / units * units;
  if (args.cell == RecurrentCell::gru) return keep == 2 ? 4 * padded : 0;
  if (args.cell == RecurrentCell::lstm) return keep == 2 ? 5 * padded : keep == 1 ? padded : 0;
  return 0;
}

// A layer that runs backwards in time: the same steps, the last first.
static const void* last_step(const Tensor& t, bool reverse) {
  const int64_t bytes = t.scalar_type() == torch::headeronly::ScalarType::Double ? 8 : 4;
  return static_cast<const char*>(t.data_ptr()) +
         (reverse ? (t.size(0) - 1) * t.stride(0) * bytes : 0);
}

struct Operands {
  const Tensor& x;
  const std::optional<Tensor>&h0, c0;
  const Tensor &w_ih, w_hh;
  const std::optional<Tensor>&b_ih, b_hh, w_hr;
};

// Checks the operands and sets everything but output and kept.
static void set_operands(RecurrentArgs& args, const std::string& cell, const Operands& in,
                         bool reverse) {
  const Tensor& x = in.x;
  args.cell = cell_of(cell);
  args.storage = storage_of(x);
  STD_TORCH_CHECK(args.storage == Storage::f32 || args.storage == Storage::f64,
                  "recurrent: wanted float32 or float64");
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1, "recurrent: wanted x (T, B, I) with T >= 1");
  STD_TORCH_CHECK(x.stride(2) == 1 || x.size(2) <= 1,
                  "recurrent: wanted x contiguous in its last dimension");
  STD_TORCH_CHECK(in.w_hh.dim() == 2, "w_hh: wanted 2 dimensions");
  STD_TORCH_CHECK(!in.w_hr.has_value() || args.cell == RecurrentCell::lstm,
                  "w_hr: wanted none for ", cell);
  const int64_t GH = in.w_hh.size(0), gates = gates_of(args.cell);
  args.T = x.size(0), args.B = x.size(1), args.I = x.size(2);
  args.H = GH / gates, args.P = in.w_hh.size(1);
  STD_TORCH_CHECK(GH == gates * args.H && args.P >= 1 && (in.w_hr.has_value() || args.P == args.H),
                  "w_hh: its sizes are not those of a cell ", cell);
  check_operand(in.h0, "h0", x, {args.B, args.P});
  check_operand(in.c0, "c0", x, {args.B, args.H});
  check_operand(in.w_ih, "w_ih", x, {GH, args.I});
  check_operand(in.w_hh, "w_hh", x, {GH, args.P});
  check_operand(in.b_ih, "b_ih", x, {GH});
  check_operand(in.b_hh, "b_hh", x, {GH});
  check_operand(in.w_hr, "w_hr", x, {args.P, args.H});
  const int64_t direction = reverse ? -1 : 1;
  args.x = last_step(x, reverse);
  args.x_stride[0] = direction * x.stride(0), args.x_stride[1] = x.stride(1);
  args.h0 = data_or_null(in.h0), args.c0 = data_or_null(in.c0);
  args.w_ih = in.w_ih.data_ptr(), args.w_hh = in.w_hh.data_ptr();
  args.b_ih = data_or_null(in.b_ih), args.b_hh = data_or_null(in.b_hh);
  args.w_hr = data_or_null(in.w_hr);
  args.output_step = direction * args.B * args.P;
}

// A contiguous tensor of t's dtype that the kernels fill, perhaps of many steps.
static Tensor large_beside(const Tensor& t, std::initializer_list<int64_t> size) {
  Tensor result = empty_beside(t, size);
  const int64_t bytes = t.scalar_type() == torch::headeronly::ScalarType::Double ? 8 : 4;
  advise_huge_pages(result.data_ptr(), result.numel() * bytes);
  return result;
}

static Parallel parallel_for(const RecurrentArgs& args) {
  return parallel_for_work(args.T * args.B * gates_of(args.cell) * args.H * (args.I + args.P + 8),
                           true);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> recurrent_cpu(
    const std::string& cell, const Tensor& x, const std::optional<Tensor>& h0,
    const std::optional<Tensor>& c0, const Tensor& w_ih, const Tensor& w_hh,
    const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh,
    const std::optional<Tensor>& w_hr, bool reverse, int64_t keep, const std::string&) {
  RecurrentForwardArgs args{};
  set_operands(args, cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, reverse);
  const int64_t T = args.T, B = args.B;
  const bool lstm = args.cell == RecurrentCell::lstm;
  args.kept_width = kept_width_of(args, keep);
  Tensor output = large_beside(x, {T, B, args.P});
  Tensor kept = large_beside(x, {T, B, args.kept_width});
  Tensor h_n = empty_beside(x, {B, args.P});
  Tensor c_n = empty_beside(x, {lstm ? B : 0, args.H});
  if (B == 0 || args.H == 0) return {output, h_n, c_n, kept};
  args.output = const_cast<void*>(last_step(output, reverse));
  args.kept = kept.data_ptr();
  args.c_n = c_n.data_ptr();
  kernels().recurrent_forward(args, parallel_for(args));
  const int64_t bytes = args.storage == Storage::f64 ? 8 : 4;
  std::memcpy(h_n.data_ptr(), last_step(output, !reverse), B * args.P * bytes);
  return {output, h_n, c_n, kept};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> recurrent_backward_cpu(
    const std::string& cell, const std::optional<Tensor>& grad_output,
    const std::optional<Tensor>& grad_h_n, const std::optional<Tensor>& grad_c_n,
    const Tensor& output, const Tensor& kept, const Tensor& x, const std::optional<Tensor>& h0,
    const std::optional<Tensor>& c0, const Tensor& w_ih, const Tensor& w_hh,
    const std::optional<Tensor>& b_ih, const std::optional<Tensor>& b_hh,
    const std::optional<Tensor>& w_hr, bool reverse, const std::string& algorithm, int64_t chunk,
    int64_t levels, int64_t wanted) {
  RecurrentBackwardArgs args{};
  set_operands(args, cell, {x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr}, reverse);
  const int64_t T = args.T, B = args.B, I = args.I, H = args.H, P = args.P;
  const int64_t GH = gates_of(args.cell) * H;
  const bool lstm = args.cell == RecurrentCell::lstm;
  check_operand(output, "output", x, {T, B, P});
  args.kept_width = kept.dim() == 3 ? kept.size(2) : -1;
  STD_TORCH_CHECK(
      args.kept_width == kept_width_of(args, 1) || args.kept_width == kept_width_of(args, 2),
      "kept: wanted what a forward with keep = 1 or 2 returned");
  check_operand(kept, "kept", x, {T, B, args.kept_width});
  args.output = const_cast<void*>(last_step(output, reverse));
  args.kept = kept.data_ptr();
  const int64_t direction = reverse ? -1 : 1;
  if (grad_output.has_value()) {
    const Tensor& u = *grad_output;
    STD_TORCH_CHECK(u.dim() == 3 && u.size(0) == T && u.size(1) == B && u.size(2) == P &&
                        u.scalar_type() == x.scalar_type() && (u.stride(2) == 1 || P == 1),
                    "grad_output: wanted (T, B, P) of x's dtype, contiguous in its last dimension");
    args.grad = last_step(u, reverse);
    args.grad_stride[0] = direction * u.stride(0), args.grad_stride[1] = u.stride(1);
  }
  check_operand(grad_h_n, "grad_h_n", x, {B, P});
  check_operand(grad_c_n, "grad_c_n", x, {B, H});
  args.grad_hn = data_or_null(grad_h_n), args.grad_cn = data_or_null(grad_c_n);

  int bit = 0;
  const auto result = [&](bool exists, std::initializer_list<int64_t> size) {
    const bool is_wanted = exists && (wanted >> bit & 1);
    ++bit;
    return is_wanted ? large_beside(x, size) : empty_beside(x, {0});
  };
  Tensor grad_x = result(true, {T, B, I});
  Tensor grad_h0 = result(true, {B, P});
  Tensor grad_c0 = result(lstm, {B, H});
  Tensor grad_w_ih = result(true, {GH, I});
  Tensor grad_w_hh = result(true, {GH, P});
  Tensor grad_b_ih = result(b_ih.has_value(), {GH});
  Tensor grad_b_hh = result(b_hh.has_value(), {GH});
  Tensor grad_w_hr = result(w_hr.has_value(), {P, H});
  const auto data = [](const Tensor& t) { return t.numel() ? t.data_ptr() : nullptr; };
  if (data(grad_x)) args.grad_x = const_cast<void*>(last_step(grad_x, reverse));
  args.grad_x_step = direction * B * I;
  args.grad_h0 = data(grad_h0), args.grad_c0 = data(grad_c0);
  args.grad_w_ih = data(grad_w_ih), args.grad_w_hh = data(grad_w_hh);
  args.grad_b_ih = data(grad_b_ih), args.grad_b_hh = data(grad_b_hh);
  args.grad_w_hr = data(grad_w_hr);
  if (H > 0)
    kernels().recurrent_backward(args, plan_of(algorithm, chunk, levels), parallel_for(args));
  return {grad_x, grad_h0, grad_c0, grad_w_ih, grad_w_hh, grad_b_ih, grad_b_hh, grad_w_hr};
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("recurrent", TORCH_BOX(&bppsa::recurrent_cpu));
  m.impl("recurrent_backward", TORCH_BOX(&bppsa::recurrent_backward_cpu));
}
