// The sparse layers' kernels of one instruction set, and those of batch normalisation.
#include "../../simd/numbers.h"
#include "../../sparse/batch_norm.h"
#include "../../sparse/conv.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

#define KERNEL(name, request_type)                                                              \
  void name(const request_type& request, const Parallel& parallel) {                            \
    with_real(request.storage,                                                                  \
              [&](auto real) { name##_as<typename decltype(real)::type>(request, parallel); }); \
  }
KERNEL(sparse_forward, SparseForwardRequest)
KERNEL(sparse_backward, SparseBackwardRequest)
KERNEL(batch_norm_forward, BatchNormForwardRequest)
KERNEL(batch_norm_backward, BatchNormBackwardRequest)
#undef KERNEL

}  // namespace bppsa::BPPSA_ISA
