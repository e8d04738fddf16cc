// The diagonal scans.

#include "../../cuda/diagonal/scan.cuh"
#include "driver.h"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the tests.
struct Request {
  const void *decay, *grad;
  void* out;
  int64_t decay_strides[3], grad_strides[3];
  int64_t T, B, H;
  const char *dtype, *algorithm;
  int64_t chunk, levels, adjoint;
  Device device;
};

template <typename scalar_t>
void run(const Request& q, Launcher& launch) {
  const auto elements = [](const void* data, const int64_t* strides) {
    return Elements<const scalar_t>{static_cast<const scalar_t*>(data), strides[0], strides[1],
                                    strides[2]};
  };
  const Elements<scalar_t> out{static_cast<scalar_t*>(q.out), q.B * q.H, q.H, 1};
  const DiagonalChain<scalar_t> chain{elements(q.decay, q.decay_strides),
                                      elements(q.grad, q.grad_strides),
                                      out,
                                      q.T,
                                      q.H,
                                      0,
                                      q.B * q.H};
  scan_diagonal(chain, q.adjoint != 0, plan_of(q.algorithm, q.chunk, q.levels), launch);
}

}  // namespace
}  // namespace bppsa::cuda

extern "C" int emulate(bppsa::cuda::Request* request) {
  return bppsa::cuda::on(request->device, [&](bppsa::cuda::Launcher& launch) {
    bppsa::cuda::with_dtype(
        request->dtype, [&](auto zero) { bppsa::cuda::run<decltype(zero)>(*request, launch); });
  });
}
