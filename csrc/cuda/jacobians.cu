// Sparse Jacobians on CUDA: values at patterns that the CPU has built, products by plans that it
// has made, and products with vectors. Arguments and results are those of
// requests/from_tensors/; the kernels are in jacobians/.
//
// The schemas are in the CPU library; this one only adds the implementations.

#include "../requests/from_tensors/jacobians.h"
#include "../requests/from_tensors/products.h"
#include "jacobians/apply.cuh"
#include "jacobians/multiply.cuh"
#include "jacobians/values.cuh"

namespace bppsa::cuda {
namespace {

/// Calls run with a zero of the dtype of `args`, on the device of `like`.
template <class Args, class Run>
void by_dtype(const Args& args, const Tensor& like, const Run& run) {
  Launcher launch(like);
  args.storage == Storage::f64 ? run(double{}, launch) : run(float{}, launch);
}

Tensor max_pool_values(const Tensor& x, const Tensor& first_y, const Tensor& out_y,
                       const Tensor& first_x, const Tensor& out_x, int64_t out_height,
                       int64_t out_width, std::vector<int64_t> pool_y,
                       std::vector<int64_t> pool_x) {
  const auto [args, values] =
      max_pool_request(x, first_y, out_y, first_x, out_x, out_height, out_width, pool_y, pool_x);
  const Tensor argmax = empty_of(x, {args.planes, out_height, out_width}, ScalarType::Int);
  by_dtype(args, x, [&](auto zero, Launcher& launch) {
    max_pool<decltype(zero)>(args, data<int32_t>(argmax), launch);
  });
  return values;
}

Tensor elementwise_values(const Tensor& x, const std::string& function, double slope) {
  const auto [args, values] = elementwise_request(x, function, slope);
  by_dtype(args, x,
           [&](auto zero, Launcher& launch) { elementwise<decltype(zero)>(args, launch); });
  return values;
}

Tensor weight_values(const Tensor& weight, const Tensor& source, const Tensor& first,
                     const Tensor& crow, int64_t entries) {
  const auto [args, values] = weight_request(weight, source, first, crow, entries);
  by_dtype(args, weight,
           [&](auto zero, Launcher& launch) { weights<decltype(zero)>(args, launch); });
  return values;
}

Tensor multiply_csr(const Tensor& a_crow, const Tensor& a_col, const Tensor& a,
                    const Tensor& b_crow, const Tensor& b_col, const Tensor& b, const Tensor& crow,
                    const Tensor& program, const Tensor& positions, int64_t entries,
                    int64_t longest, bool b_single, bool side_by_side) {
  const auto [args, values] = multiply_request(a_crow, a_col, a, b_crow, b_col, b, crow, program,
                                               positions, entries, longest, b_single, side_by_side);
  by_dtype(args, a, [&](auto zero, Launcher& launch) { multiply<decltype(zero)>(args, launch); });
  return values;
}

Tensor apply_csr(const Tensor& crow, const Tensor& col, const Tensor& values, const Tensor& x) {
  const auto [args, out] = apply_request(crow, col, values, x);
  by_dtype(args, x, [&](auto zero, Launcher& launch) { apply<decltype(zero)>(args, launch); });
  return out;
}

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("max_pool_values", TORCH_BOX(&bppsa::cuda::max_pool_values));
  m.impl("elementwise_values", TORCH_BOX(&bppsa::cuda::elementwise_values));
  m.impl("weight_values", TORCH_BOX(&bppsa::cuda::weight_values));
  m.impl("multiply_csr", TORCH_BOX(&bppsa::cuda::multiply_csr));
  m.impl("apply_csr", TORCH_BOX(&bppsa::cuda::apply_csr));
}
