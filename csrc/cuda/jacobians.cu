// Sparse Jacobians on CUDA: values at patterns that the CPU has built, products by plans that it
// has made, and products with vectors. The kernels are in jacobians/.

#include "../operators/jacobians.h"
#include "jacobians/apply.cuh"
#include "jacobians/multiply.cuh"
#include "jacobians/values.cuh"

namespace bppsa::cuda {
namespace {

struct Device {
  /// Calls run with a zero of the dtype of a request.
  template <class Request, class Run>
  static void by_dtype(const Request& request, const Run& run) {
    request.storage == Storage::f64 ? run(double{}) : run(float{});
  }

#define KERNEL(name, Request)                                                     \
  static void run(const Request& request, const Tensor& like, int64_t) {          \
    Launcher launch(like);                                                        \
    by_dtype(request, [&](auto zero) { name<decltype(zero)>(request, launch); }); \
  }
  KERNEL(elementwise, ElementwiseRequest)
  KERNEL(weights, WeightRequest)
  KERNEL(multiply, NumericRequest)
  KERNEL(apply, ApplyRequest)
#undef KERNEL

  static void run(const MaxPoolRequest& request, const Tensor& like, int64_t) {
    const Sizes windows{request.planes, request.y.out_size, request.x.out_size};
    const Tensor argmax = empty_beside(like, windows, ScalarType::Int);
    Launcher launch(like);
    by_dtype(request,
             [&](auto zero) { max_pool<decltype(zero)>(request, data<int32_t>(argmax), launch); });
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
