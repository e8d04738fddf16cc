// The kernels of sparse Jacobians of one instruction set, by dtype; see kernels.cpp.
#include "../jacobians/multiply.h"
#include "../jacobians/patterns.h"
#include "../jacobians/symbolic.h"
#include "../jacobians/values.h"

namespace bppsa::BPPSA_ISA {
namespace {

// Sparse Jacobians are float32 or float64 (cpu/jacobians.h checks).
template <class Args>
using Kernel = void (*)(const Args&, const Parallel&);
template <class Args, Kernel<Args> kFloat, Kernel<Args> kDouble>
void by_dtype(const Args& args, const Parallel& parallel) {
  (args.storage == Storage::f64 ? kDouble : kFloat)(args, parallel);
}

}  // namespace

extern const JacobianKernels jacobian_kernels;
const JacobianKernels jacobian_kernels = {
    count_templates,
    fill_templates,
    fill_convolution,
    fill_windows,
    by_dtype<MaxPoolArgs, max_pool_as<float>, max_pool_as<double>>,
    by_dtype<ElementwiseArgs, elementwise_as<float>, elementwise_as<double>>,
    by_dtype<WeightArgs, weights_as<float>, weights_as<double>>,
    count_product,
    fill_product,
    by_dtype<NumericArgs, multiply_as<float>, multiply_as<double>>,
    by_dtype<ApplyArgs, apply_as<float>, apply_as<double>>,
};

}  // namespace bppsa::BPPSA_ISA
