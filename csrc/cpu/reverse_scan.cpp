// bppsa::reverse_scan on the CPU: the dense cell under any scan algorithm.
#include "torch_glue.h"

namespace bppsa {

// The adjoint recurrence, v_0 = c_0, v_{i+1} = jac_t[i]^T v_i + c_{i+1}, is the same scan with
// time reversed and each matrix transposed: only pointers and strides change.
Tensor reverse_scan_cpu(const Tensor& jac_t, const Tensor& grad, const std::string& algorithm,
                        int64_t chunk, int64_t levels, bool adjoint) {
  STD_TORCH_CHECK(jac_t.dim() == 4 && grad.dim() == 3, "reverse_scan: wanted jac_t (T, B, H, H) ",
                  "and grad (T + 1, B, H)");
  const int64_t T = jac_t.size(0), B = jac_t.size(1), H = jac_t.size(2);
  STD_TORCH_CHECK(jac_t.size(3) == H && grad.size(0) == T + 1 && grad.size(1) == B &&
                      grad.size(2) == H && jac_t.scalar_type() == grad.scalar_type(),
                  "reverse_scan: shapes or dtypes of jac_t and grad do not agree");
  Tensor out = empty_beside(grad, {T + 1, B, H});
  if (out.numel() == 0) return out;

  DenseScanArgs args;
  args.storage = storage_of(grad);
  args.T = T, args.B = B, args.H = H;
  const int64_t bytes = args.storage == Storage::f64 ? 8 : args.storage == Storage::f32 ? 4 : 2;
  const int64_t last_step = adjoint && T > 0 ? (T - 1) * jac_t.stride(0) : 0;
  const int64_t last_state = adjoint ? T : 0;
  const int64_t direction = adjoint ? -1 : 1;
  args.jac_t = static_cast<const char*>(jac_t.data_ptr()) + last_step * bytes;
  args.jac_stride[0] = direction * jac_t.stride(0);
  args.jac_stride[1] = jac_t.stride(1);
  args.jac_stride[2] = jac_t.stride(adjoint ? 3 : 2);
  args.jac_stride[3] = jac_t.stride(adjoint ? 2 : 3);
  args.grad = static_cast<const char*>(grad.data_ptr()) + last_state * grad.stride(0) * bytes;
  args.grad_stride[0] = direction * grad.stride(0);
  args.grad_stride[1] = grad.stride(1);
  args.grad_stride[2] = grad.stride(2);
  args.out = static_cast<char*>(out.data_ptr()) + last_state * B * H * bytes;
  args.out_stride[0] = direction * B * H;
  args.out_stride[1] = H;
  kernels().dense_scan(args, plan_of(algorithm, chunk, levels), parallel_for_work(T * B * H * H));
  return out;
}

std::string cpu_capability() { return kernels().name; }

}  // namespace bppsa

STABLE_TORCH_LIBRARY(bppsa, m) {
  m.def(
      "reverse_scan(Tensor jac_t, Tensor grad, str algorithm, int chunk, int levels, "
      "bool adjoint) -> Tensor");
  m.def(
      "recurrent(str cell, Tensor x, Tensor? h0, Tensor? c0, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, bool reverse, int keep, str algorithm) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "recurrent_backward(str cell, Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, "
      "Tensor output, Tensor kept, Tensor x, Tensor? h0, Tensor? c0, Tensor w_ih, Tensor w_hh, "
      "Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, bool reverse, str algorithm, int chunk, "
      "int levels, int wanted) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("cpu_capability() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::reverse_scan_cpu));
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CompositeExplicitAutograd, m) {
  m.impl("cpu_capability", TORCH_BOX(&bppsa::cpu_capability));
}
