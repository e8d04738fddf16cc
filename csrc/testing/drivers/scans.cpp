// The dense and the diagonal scans.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "../../cuda/dense/scan.cuh"
#include "../../cuda/diagonal/scan.cuh"
#include "driver.h"

using namespace bppsa;

namespace {

/// Calls run(zero, launcher) on the device with a zero of the request's type.
template <class Request, class Run>
int scan(const Request& request, cuda::Device& device, const Run& run) {
  return cuda::on(device, [&](cuda::Launcher& launch) {
    switch (request.storage) {
      case Storage::f32:
        return run(float{}, launch);
      case Storage::f64:
        return run(double{}, launch);
      case Storage::bf16:
        return run(torch::headeronly::BFloat16{}, launch);
      case Storage::f16:
        return run(torch::headeronly::Half{}, launch);
    }
  });
}

}  // namespace

extern "C" int emulate_dense(const DenseScanRequest* request, const Plan* plan,
                             cuda::Device* device) {
  return scan(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::scan_dense<decltype(zero)>(*request, *plan, launch);
  });
}

extern "C" int emulate_diagonal(const DiagonalScanRequest* request, const Plan* plan,
                                cuda::Device* device) {
  return scan(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::scan_diagonal<decltype(zero)>(*request, *plan, launch);
  });
}
