// bppsa::rnn and bppsa::rnn_backward on the CPU: the RNN cell's fused forward, and its
// backward under any scan algorithm. What follows the scan (parameter and input gradients)
// are GEMMs, left to torch; see bppsa_lightning/ops.py.
#include "torch_glue.h"

namespace bppsa {

static Nonlinearity nonlinearity_of(const std::string& name) {
  if (name == "tanh") return Nonlinearity::tanh;
  if (name == "relu") return Nonlinearity::relu;
  STD_TORCH_CHECK(name == "given", "nonlinearity: found '", name, "', wanted 'tanh' or 'relu'");
  return Nonlinearity::given;
}

static Storage rnn_storage(const Tensor& t) {
  const Storage storage = storage_of(t);
  STD_TORCH_CHECK(storage == Storage::f32 || storage == Storage::f64,
                  "rnn: wanted float32 or float64");
  return storage;
}

// output (T, B, H) and a copy of its last state (B, H).
std::tuple<Tensor, Tensor> rnn_cpu(const Tensor& x, const std::optional<Tensor>& h0,
                                   const Tensor& w_ih, const Tensor& w_hh,
                                   const std::optional<Tensor>& b_ih,
                                   const std::optional<Tensor>& b_hh,
                                   const std::string& nonlinearity, const std::string&) {
  STD_TORCH_CHECK(x.dim() == 3 && x.size(0) >= 1, "rnn: wanted x (T, B, I) with T >= 1");
  STD_TORCH_CHECK(w_hh.dim() == 2, "w_hh: wanted (H, H)");
  const int64_t T = x.size(0), B = x.size(1), I = x.size(2), H = w_hh.size(0);
  STD_TORCH_CHECK(x.stride(2) == 1 || I == 1, "rnn: wanted x contiguous in its last dimension");
  check_operand(h0, "h0", x, {B, H});
  check_operand(w_ih, "w_ih", x, {H, I});
  check_operand(w_hh, "w_hh", x, {H, H});
  check_operand(b_ih, "b_ih", x, {H});
  check_operand(b_hh, "b_hh", x, {H});
  Tensor output = empty_beside(x, {T, B, H});
  Tensor hn = empty_beside(x, {B, H});

  RnnForwardArgs args;
  args.storage = rnn_storage(x);
  args.nonlinearity = nonlinearity_of(nonlinearity);
  args.T = T, args.B = B, args.H = H, args.I = I;
  args.x = x.data_ptr();
  args.x_stride[0] = x.stride(0), args.x_stride[1] = x.stride(1);
  args.h0 = data_or_null(h0);
  args.w_ih = w_ih.data_ptr(), args.w_hh = w_hh.data_ptr();
  args.b_ih = data_or_null(b_ih), args.b_hh = data_or_null(b_hh);
  args.output = output.data_ptr();
  if (output.numel() == 0) return {output, hn};
  kernels().rnn_forward(args, parallel_for_work(T * B * H * (H + I)));
  Tensor last = torch::stable::select(output, 0, T - 1);
  torch::stable::copy_(hn, last);
  return {output, hn};
}

// grad_z (T, B, H): the gradient of each step's pre-activation; grad_h0 (B, H).
std::tuple<Tensor, Tensor> rnn_backward_cpu(const std::optional<Tensor>& grad_output,
                                            const std::optional<Tensor>& grad_hn,
                                            const Tensor& kept, const Tensor& w_hh,
                                            const std::string& nonlinearity,
                                            const std::string& algorithm, int64_t chunk,
                                            int64_t levels) {
  STD_TORCH_CHECK(kept.dim() == 3 && kept.size(0) >= 1, "kept: wanted (T, B, H) with T >= 1");
  const int64_t T = kept.size(0), B = kept.size(1), H = kept.size(2);
  check_operand(kept, "kept", kept, {T, B, H});
  check_operand(w_hh, "w_hh", kept, {H, H});
  Tensor grad_z = empty_beside(kept, {T, B, H});
  Tensor grad_h0 = empty_beside(kept, {B, H});

  RnnBackwardArgs args{};
  args.storage = rnn_storage(kept);
  args.nonlinearity = nonlinearity_of(nonlinearity);
  args.T = T, args.B = B, args.H = H;
  args.kept = kept.data_ptr(), args.w_hh = w_hh.data_ptr();
  if (grad_output.has_value()) {
    STD_TORCH_CHECK(
        grad_output->dim() == 3 && grad_output->size(0) == T && grad_output->size(1) == B &&
            grad_output->size(2) == H && grad_output->scalar_type() == kept.scalar_type() &&
            (grad_output->stride(2) == 1 || H == 1),
        "grad_output: wanted (T, B, H) of kept's dtype, contiguous in its last dimension");
    args.grad = grad_output->data_ptr();
    args.grad_stride[0] = grad_output->stride(0), args.grad_stride[1] = grad_output->stride(1);
  }
  if (grad_hn.has_value()) {
    check_operand(*grad_hn, "grad_hn", kept, {B, H});
    args.grad_last = grad_hn->data_ptr();
  }
  args.grad_z = grad_z.data_ptr(), args.grad_h0 = grad_h0.data_ptr();
  if (kept.numel() == 0) return {grad_z, grad_h0};
  kernels().rnn_backward(args, plan_of(algorithm, chunk, levels), parallel_for_work(T * B * H * H));
  return {grad_z, grad_h0};
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("rnn", TORCH_BOX(&bppsa::rnn_cpu));
  m.impl("rnn_backward", TORCH_BOX(&bppsa::rnn_backward_cpu));
}
