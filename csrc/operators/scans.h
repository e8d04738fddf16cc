// bppsa::reverse_scan and bppsa::diagonal_scan.
//
//   jac_t (T, B, H, H) or decay (T, B, H), grad (T + 1, B, H): any strides, one dtype and device
//   result g (T + 1, B, H), contiguous:
//     g[T] = grad[T],  g[i] = jac_t[i] g[i + 1] + grad[i]
//
// The adjoint recurrence, g[0] = grad[0], g[i + 1] = jac_t[i]^T g[i] + grad[i + 1], is the same
// scan with time reversed and each matrix transposed: only pointers and strides change.
//
// Device: empty(like, size), a tensor for a result of all steps; run(request, plan, out).
#pragma once

#include "../requests/scans.h"
#include "tensors.h"

namespace bppsa {

// The tensor; or a contiguous copy, where places inside one of its matrices or vectors (dimensions
// 2 and on) do not fit the 32 bits that CUDA's dense kernels count them in.
inline Tensor addressable(const Tensor& t) {
  int64_t reach = 0;
  for (int64_t d = 2; d < t.dim(); ++d) reach += (t.size(d) - 1) * t.stride(d);
  return t.is_cpu() || reach <= INT32_MAX ? t : torch::stable::contiguous(t);
}

// Both scans, where `request` has its maps already.
template <class Device, class Request>
Tensor scan(Request& request, const char* name, const Tensor& maps, const Tensor& grad,
            const Plan& plan, bool adjoint) {
  const int64_t T = maps.size(0), B = maps.size(1), H = maps.size(2);
  STD_TORCH_CHECK(agrees(grad, maps, {T + 1, B, H}), "shapes or dtypes of ", name,
                  " and grad do not agree: wanted grad (", T + 1, ", ", B, ", ", H, ")");
  const Tensor out = Device::empty(grad, {T + 1, B, H});
  request.storage = storage_of(grad);
  request.T = T, request.B = B, request.H = H;
  request.grad = first_step(grad, adjoint);
  set_strides(request.grad_stride, grad, adjoint);
  request.out = first_step(out, adjoint);
  request.out_step = direction(adjoint) * B * H;
  Device::run(request, plan, out);
  return out;
}

template <class Device>
Tensor reverse_scan(const Tensor& any_jac_t, const Tensor& any_grad, const std::string& algorithm,
                    int64_t chunk, int64_t levels, bool adjoint) {
  const Tensor jac_t = addressable(any_jac_t), grad = addressable(any_grad);
  STD_TORCH_CHECK(jac_t.dim() == 4 && jac_t.size(2) == jac_t.size(3),
                  "reverse_scan: wanted jac_t (T, B, H, H)");
  DenseScanRequest request{};
  request.jac_t = first_step(jac_t, adjoint);
  set_strides(request.jac_stride, jac_t, adjoint);
  if (adjoint) std::swap(request.jac_stride[2], request.jac_stride[3]);
  return scan<Device>(request, "jac_t", jac_t, grad, plan_of(algorithm, chunk, levels), adjoint);
}

template <class Device>
Tensor diagonal_scan(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels, bool adjoint) {
  STD_TORCH_CHECK(decay.dim() == 3, "diagonal_scan: wanted decay (T, B, H)");
  DiagonalScanRequest request{};
  request.decay = first_step(decay, adjoint);
  set_strides(request.decay_stride, decay, adjoint);
  return scan<Device>(request, "decay", decay, grad, plan_of(algorithm, chunk, levels), adjoint);
}

}  // namespace bppsa
