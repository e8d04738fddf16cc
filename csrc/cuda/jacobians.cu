// Sparse Jacobians on CUDA: values at patterns that the CPU has built, products by plans that it
// has made, and products with vectors. The kernels are in jacobians/.

#include "../operators/jacobians.h"
#include "jacobians/apply.cuh"
#include "jacobians/multiply.cuh"
#include "jacobians/values.cuh"

namespace bppsa::cuda {
namespace {

struct Device {
  template <class Request>
  static void run(const Request& request, const Tensor& like, int64_t) {
    Launcher launch(like);
    request.storage == Storage::f64 ? cuda::run<double>(request, launch)
                                    : cuda::run<float>(request, launch);
  }
};

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("max_pool_values", TORCH_BOX(&bppsa::max_pool_values<bppsa::cuda::Device>));
  m.impl("elementwise_values", TORCH_BOX(&bppsa::elementwise_values<bppsa::cuda::Device>));
  m.impl("weight_values", TORCH_BOX(&bppsa::weight_values<bppsa::cuda::Device>));
  m.impl("multiply_csr", TORCH_BOX(&bppsa::multiply_csr<bppsa::cuda::Device>));
  m.impl("apply_csr", TORCH_BOX(&bppsa::apply_csr<bppsa::cuda::Device>));
}
