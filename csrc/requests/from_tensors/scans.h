// Requests of bppsa::reverse_scan and bppsa::diagonal_scan.
//
//   jac_t (T, B, H, H) or decay (T, B, H), grad (T + 1, B, H): any strides, one dtype and device
//   result g (T + 1, B, H), contiguous:
//     g[T] = grad[T],  g[i] = jac_t[i] g[i + 1] + grad[i]
//
// The adjoint recurrence, g[0] = grad[0], g[i + 1] = jac_t[i]^T g[i] + grad[i + 1], is the same
// scan with time reversed and each matrix transposed: only pointers and strides change.
#pragma once

#include "../scans.h"
#include "tensors.h"

namespace bppsa {

// grad and the result: what both scans share.
template <class Request>
Asked<Request> scan_request(const char* operands, const Tensor& maps, const Tensor& grad,
                            bool adjoint) {
  const int64_t T = maps.size(0), B = maps.size(1), H = maps.size(2);
  STD_TORCH_CHECK(grad.dim() == 3 && grad.size(0) == T + 1 && grad.size(1) == B &&
                      grad.size(2) == H && maps.scalar_type() == grad.scalar_type() &&
                      same_device(maps, grad),
                  "shapes or dtypes of ", operands, " and grad do not agree: wanted grad (", T + 1,
                  ", ", B, ", ", H, ")");
  Tensor out = empty_beside(grad, {T + 1, B, H});
  Request request{};
  request.storage = storage_of(grad);
  request.T = T, request.B = B, request.H = H;
  request.grad = first_step(grad, adjoint);
  request.out = first_step(out, adjoint);
  for (int d = 0; d < 3; ++d) request.grad_stride[d] = grad.stride(d);
  request.grad_stride[0] *= direction(adjoint);
  request.out_step = direction(adjoint) * B * H;
  return {request, out};
}

inline Asked<DenseScanRequest> dense_scan_request(const Tensor& jac_t, const Tensor& grad,
                                                  bool adjoint) {
  STD_TORCH_CHECK(jac_t.dim() == 4 && jac_t.size(2) == jac_t.size(3),
                  "reverse_scan: wanted jac_t (T, B, H, H)");
  auto [request, out] = scan_request<DenseScanRequest>("jac_t", jac_t, grad, adjoint);
  request.jac_t = first_step(jac_t, adjoint);
  request.jac_stride[0] = direction(adjoint) * jac_t.stride(0);
  request.jac_stride[1] = jac_t.stride(1);
  request.jac_stride[2] = jac_t.stride(adjoint ? 3 : 2);
  request.jac_stride[3] = jac_t.stride(adjoint ? 2 : 3);
  return {request, out};
}

inline Asked<DiagonalScanRequest> diagonal_scan_request(const Tensor& decay, const Tensor& grad,
                                                        bool adjoint) {
  STD_TORCH_CHECK(decay.dim() == 3, "diagonal_scan: wanted decay (T, B, H)");
  auto [request, out] = scan_request<DiagonalScanRequest>("decay", decay, grad, adjoint);
  request.decay = first_step(decay, adjoint);
  for (int d = 0; d < 3; ++d) request.decay_stride[d] = decay.stride(d);
  request.decay_stride[0] *= direction(adjoint);
  return {request, out};
}

}  // namespace bppsa
