// The kernels on sparse Jacobians. Their arguments are the structs of requests/jacobians.h,
// mirrored by ctypes in the tests too.

#include "../../cuda/jacobians/apply.cuh"
#include "../../cuda/jacobians/multiply.cuh"
#include "../../cuda/jacobians/values.cuh"
#include "driver.h"

using namespace bppsa;

#define DRIVER(name, Request)                                                   \
  extern "C" int emulate_##name(const Request* request, cuda::Device* device) { \
    return cuda::on(*device, [&](cuda::Launcher& launch) {                      \
      request->storage == Storage::f64 ? cuda::run<double>(*request, launch)    \
                                       : cuda::run<float>(*request, launch);    \
    });                                                                         \
  }
DRIVER(weights, WeightRequest)
DRIVER(elementwise, ElementwiseRequest)
DRIVER(max_pool, MaxPoolRequest)
DRIVER(multiply, NumericRequest)
DRIVER(apply, ApplyRequest)
