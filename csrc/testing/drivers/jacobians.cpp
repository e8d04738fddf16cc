// The kernels on sparse Jacobians. Their arguments are the structs of jacobians/kernels.h, mirrored
// by ctypes in the tests too.

#include "../../cuda/jacobians/apply.cuh"
#include "../../cuda/jacobians/multiply.cuh"
#include "../../cuda/jacobians/values.cuh"
#include "driver.h"

namespace bppsa::cuda {
namespace {

/// Calls run with a zero of the dtype of `args`, and a launcher.
template <class Args, class Run>
int emulate(const Args& args, Device& device, const Run& run) {
  return on(device, [&](Launcher& launch) {
    args.storage == Storage::f64 ? run(double{}, launch) : run(float{}, launch);
  });
}

}  // namespace
}  // namespace bppsa::cuda

using namespace bppsa;

extern "C" int emulate_weights(const WeightArgs* args, cuda::Device* device) {
  return cuda::emulate(*args, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::weights<decltype(zero)>(*args, launch);
  });
}

extern "C" int emulate_elementwise(const ElementwiseArgs* args, cuda::Device* device) {
  return cuda::emulate(*args, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::elementwise<decltype(zero)>(*args, launch);
  });
}

extern "C" int emulate_max_pool(const MaxPoolArgs* args, int32_t* argmax, cuda::Device* device) {
  return cuda::emulate(*args, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::max_pool<decltype(zero)>(*args, argmax, launch);
  });
}

extern "C" int emulate_multiply(const NumericArgs* args, cuda::Device* device) {
  return cuda::emulate(*args, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::multiply<decltype(zero)>(*args, launch);
  });
}

extern "C" int emulate_apply(const ApplyArgs* args, cuda::Device* device) {
  return cuda::emulate(*args, *device, [&](auto zero, cuda::Launcher& launch) {
    cuda::apply<decltype(zero)>(*args, launch);
  });
}
