// The sparse layers' kernels of one instruction set, and those of batch normalisation.
#include "../../simd/numbers.h"
#include "../../sparse/batch_norm.h"
#include "../../sparse/conv.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

BPPSA_KERNEL_BY_DTYPE(sparse_forward, SparseForwardRequest)
BPPSA_KERNEL_BY_DTYPE(sparse_backward, SparseBackwardRequest)
BPPSA_KERNEL_BY_DTYPE(batch_norm_forward, BatchNormForwardRequest)
BPPSA_KERNEL_BY_DTYPE(batch_norm_backward, BatchNormBackwardRequest)

}  // namespace bppsa::BPPSA_ISA
