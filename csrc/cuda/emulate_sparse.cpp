// The kernels on sparse Jacobians of this directory as plain C functions over host memory, through
// the emulator: what tests/test_cuda_emulation_sparse.py calls. Not part of any library that is
// installed.

#include <cstdio>
#include <exception>

#include "../requests/jacobians.h"
#include "jacobian_values.cuh"
#include "sparse_apply.cuh"
#include "sparse_product.cuh"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the test, as are the structs of requests/jacobians.h.
struct Limits {
  int64_t seed, shared_limit, processors, grid_limit;
  char launches[512];  // answer: the kernels that were launched
  char error[512];     // answer: empty if all went well
};

/// Calls run with a zero of the dtype of `args`, and a launcher.
template <class Args, class Run>
void emulate(const Args& args, Limits& limits, const Run& run) {
  Launcher launch;
  launch.shared_limit = limits.shared_limit;
  launch.processors = static_cast<int>(limits.processors);
  launch.grid_limit = limits.grid_limit;
  emulator::Device::get().seed = static_cast<unsigned>(limits.seed);
  limits.error[0] = limits.launches[0] = '\0';
  try {
    args.storage == Storage::f64 ? run(double{}, launch) : run(float{}, launch);
  } catch (const std::exception& error) {
    std::snprintf(limits.error, sizeof(limits.error), "%s", error.what());
  }
  std::string launches;
  for (const std::string& name : launch.launches) launches += name + ";";
  std::snprintf(limits.launches, sizeof(limits.launches), "%s", launches.c_str());
}

}  // namespace
}  // namespace bppsa::cuda

using namespace bppsa;

extern "C" void emulate_weights(const WeightRequest* args, cuda::Limits* limits) {
  cuda::emulate(*args, *limits, [&](auto zero, cuda::Launcher& launch) {
    cuda::weights<decltype(zero)>(*args, launch);
  });
}

extern "C" void emulate_elementwise(const ElementwiseRequest* args, cuda::Limits* limits) {
  cuda::emulate(*args, *limits, [&](auto zero, cuda::Launcher& launch) {
    cuda::elementwise<decltype(zero)>(*args, launch);
  });
}

extern "C" void emulate_max_pool(const MaxPoolRequest* args, int32_t* argmax, cuda::Limits* limits) {
  cuda::emulate(*args, *limits, [&](auto zero, cuda::Launcher& launch) {
    cuda::max_pool<decltype(zero)>(*args, argmax, launch);
  });
}

extern "C" void emulate_multiply(const NumericRequest* args, cuda::Limits* limits) {
  cuda::emulate(*args, *limits, [&](auto zero, cuda::Launcher& launch) {
    cuda::multiply<decltype(zero)>(*args, launch);
  });
}

extern "C" void emulate_apply(const ApplyRequest* args, cuda::Limits* limits) {
  cuda::emulate(*args, *limits, [&](auto zero, cuda::Launcher& launch) {
    cuda::apply<decltype(zero)>(*args, launch);
  });
}
