// What the library of CUDA kernels says of itself. The schemas of all other operators are in the
// CPU library (library.cpp); scans.cu, recurrent.cu and jacobians.cu add their implementations
// here.

#include <torch/csrc/stable/library.h>

#include <string>

#include "device/untrusted.cuh"

namespace bppsa::cuda {
namespace {

/// The compute capabilities that the recurrent kernels were compiled for: "75,90" are 7.5 and 9.0.
std::string architectures() { return BPPSA_RECURRENT_ARCHITECTURES; }

/// Reports of products that were walked around on the device of a tensor, one a thread.
int64_t untrusted(const torch::stable::Tensor& on) {
  const torch::stable::accelerator::DeviceGuard guard(on.get_device_index());
  int64_t sum = 0;
  for (const auto count : untrusted_counts()) sum += static_cast<int64_t>(count());
  return sum;
}

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def("recurrent_cuda_architectures() -> str");
  m.def("untrusted_products(Tensor on) -> int");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CompositeExplicitAutograd, m) {
  m.impl("recurrent_cuda_architectures", TORCH_BOX(&bppsa::cuda::architectures));
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("untrusted_products", TORCH_BOX(&bppsa::cuda::untrusted));
}
