// bppsa::diagonal_scan on the CPU: the diagonal cell under any scan algorithm.
#include "torch_glue.h"

namespace bppsa {

// The adjoint recurrence, v_0 = c_0, v_{i+1} = decay[i] v_i + c_{i+1}, is the same scan with time
// reversed: only pointers and strides change.
Tensor diagonal_scan_cpu(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                         int64_t chunk, int64_t levels, bool adjoint) {
  STD_TORCH_CHECK(decay.dim() == 3 && grad.dim() == 3, "diagonal_scan: wanted decay (T, B, H) ",
                  "and grad (T + 1, B, H)");
  const int64_t T = decay.size(0), B = decay.size(1), H = decay.size(2);
  STD_TORCH_CHECK(grad.size(0) == T + 1 && grad.size(1) == B && grad.size(2) == H &&
                      decay.scalar_type() == grad.scalar_type(),
                  "diagonal_scan: shapes or dtypes of decay and grad do not agree");
  const Plan plan = plan_of(algorithm, chunk, levels);
  Tensor out = empty_beside(grad, {T + 1, B, H});
  if (out.numel() == 0) return out;

  DiagonalScanArgs args;
  args.storage = storage_of(grad);
  args.T = T, args.B = B, args.H = H;
  const int64_t bytes = args.storage == Storage::f64 ? 8 : args.storage == Storage::f32 ? 4 : 2;
  const int64_t last_step = adjoint && T > 0 ? T - 1 : 0;
  const int64_t last_state = adjoint ? T : 0;
  const int64_t direction = adjoint ? -1 : 1;
  args.decay = static_cast<const char*>(decay.data_ptr()) + last_step * decay.stride(0) * bytes;
  args.grad = static_cast<const char*>(grad.data_ptr()) + last_state * grad.stride(0) * bytes;
  args.out = static_cast<char*>(out.data_ptr()) + last_state * B * H * bytes;
  args.out_step = direction * B * H;
  for (int d = 0; d < 3; ++d) {
    args.decay_stride[d] = decay.stride(d) * (d == 0 ? direction : 1);
    args.grad_stride[d] = grad.stride(d) * (d == 0 ? direction : 1);
  }
  kernels().diagonal_scan(args, plan, parallel_for_work(T * B * H));
  return out;
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::diagonal_scan_cpu));
}
