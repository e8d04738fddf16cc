// The dense scans.

#include "../../cuda/dense/scan.cuh"
#include "driver.h"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in tests/csrc/test_dense_scan.py.
struct Request {
  const void *jac_t, *grad;
  void* out;
  int64_t jac_strides[4], grad_strides[3];
  int64_t T, B, H;
  const char *dtype, *algorithm;
  int64_t chunk, levels, adjoint;
  Device device;
};

template <typename scalar_t>
void run(const Request& q, Launcher& launch) {
  const int64_t *js = q.jac_strides, *gs = q.grad_strides;
  const Matrices<scalar_t> jac_t{static_cast<const scalar_t*>(q.jac_t), js[0], js[1],
                                 static_cast<int>(js[2]), static_cast<int>(js[3])};
  const Vectors<const scalar_t> grad{static_cast<const scalar_t*>(q.grad), gs[0], gs[1],
                                     static_cast<int>(gs[2])};
  const Vectors<scalar_t> out{static_cast<scalar_t*>(q.out), q.B * q.H, q.H, 1};
  scan_dense(DenseChain<scalar_t>{jac_t, grad, q.T, q.B, static_cast<int>(q.H)}, out,
             q.adjoint != 0, plan_of(q.algorithm, q.chunk, q.levels), launch);
}

}  // namespace
}  // namespace bppsa::cuda

extern "C" int emulate(bppsa::cuda::Request* request) {
  return bppsa::cuda::on(request->device, [&](bppsa::cuda::Launcher& launch) {
    bppsa::cuda::with_dtype(
        request->dtype, [&](auto zero) { bppsa::cuda::run<decltype(zero)>(*request, launch); });
  });
}
