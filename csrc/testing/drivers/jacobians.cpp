// The kernels on sparse Jacobians. Their arguments are the structs of requests/jacobians.h,
// mirrored by ctypes in the tests too.

#include "../../cuda/jacobians/apply.cuh"
#include "../../cuda/jacobians/multiply.cuh"
#include "../../cuda/jacobians/values.cuh"
#include "driver.h"

namespace bppsa::cuda {
namespace {

/// Calls run with a zero of the dtype of `request`, and a launcher.
template <class Request, class Run>
int emulate(const Request& request, Device& device, const Run& run) {
  return on(device, [&](Launcher& launch) {
    request.storage == Storage::f64 ? run(double{}, launch) : run(float{}, launch);
  });
}

}  // namespace
}  // namespace bppsa::cuda

using namespace bppsa;

extern "C" int emulate_weights(const WeightRequest* request, cuda::Device* device) {
  return cuda::emulate(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::weights<decltype(zero)>(*request, launch);
  });
}

extern "C" int emulate_elementwise(const ElementwiseRequest* request, cuda::Device* device) {
  return cuda::emulate(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::elementwise<decltype(zero)>(*request, launch);
  });
}

extern "C" int emulate_max_pool(const MaxPoolRequest* request, int32_t* argmax,
                                cuda::Device* device) {
  return cuda::emulate(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::max_pool<decltype(zero)>(*request, argmax, launch);
  });
}

extern "C" int emulate_multiply(const NumericRequest* request, cuda::Device* device) {
  return cuda::emulate(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::multiply<decltype(zero)>(*request, launch);
  });
}

extern "C" int emulate_apply(const ApplyRequest* request, cuda::Device* device) {
  return cuda::emulate(*request, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::apply<decltype(zero)>(*request, launch);
  });
}
