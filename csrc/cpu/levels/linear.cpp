// Rows times a matrix, of one instruction set.
#include "../../recurrent/linear.h"

#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

BPPSA_KERNEL_BY_DTYPE(linear_forward, LinearForwardRequest)
BPPSA_KERNEL_BY_DTYPE(linear_backward, LinearBackwardRequest)

}  // namespace bppsa::BPPSA_ISA
