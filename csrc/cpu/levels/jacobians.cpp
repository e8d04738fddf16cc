// The kernels of sparse Jacobians of one instruction set.
#include "../../jacobians/multiply.h"
#include "../../jacobians/patterns.h"
#include "../../jacobians/symbolic.h"
#include "../../jacobians/values.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

// Patterns have no dtype.
#define KERNEL(name, request_type, kernel) \
  void name(const request_type& request, const Parallel& parallel) { kernel(request, parallel); }
KERNEL(count_templates, ConvolutionRequest, measure_templates)
KERNEL(fill_templates, ConvolutionRequest, write_templates)
KERNEL(fill_convolution, ConvolutionRequest, write_convolution)
KERNEL(fill_windows, WindowRequest, write_windows)
KERNEL(count_product, SymbolicRequest, count_rows)
KERNEL(fill_product, SymbolicRequest, write_rows)
#undef KERNEL

BPPSA_KERNEL_BY_DTYPE(max_pool, MaxPoolRequest)
BPPSA_KERNEL_BY_DTYPE(elementwise, ElementwiseRequest)
BPPSA_KERNEL_BY_DTYPE(weights, WeightRequest)
BPPSA_KERNEL_BY_DTYPE(multiply, NumericRequest)
BPPSA_KERNEL_BY_DTYPE(apply, ApplyRequest)

}  // namespace bppsa::BPPSA_ISA
