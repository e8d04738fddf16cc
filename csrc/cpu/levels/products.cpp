// The dense products of one instruction set, which the chains and layers of every cell call.
#include "../../simd/products.h"

#include "../../simd/panels.h"

namespace bppsa::BPPSA_ISA {

template MultiplyRows<float> multiply_rows<float>(int64_t);
template MultiplyRows<double> multiply_rows<double>(int64_t);
BPPSA_MULTIPLY_BY_PANELS(float);
BPPSA_MULTIPLY_BY_PANELS(double);
template void transpose_columns<float>(int64_t, const float* const*, float*, int64_t);
template void transpose_columns<double>(int64_t, const double* const*, double*, int64_t);

}  // namespace bppsa::BPPSA_ISA
