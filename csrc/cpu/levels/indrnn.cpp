// The independently recurrent layer's kernels of one instruction set, by dtype and formula.
#include "../../recurrent/independent.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

void indrnn_forward(const IndRnnForwardRequest& request, const Parallel& parallel) {
  with_real(request.storage, [&](auto real) {
    using T = typename decltype(real)::type;
    request.relu ? independent_forward<RnnRelu, T>(request, parallel)
                 : independent_forward<RnnTanh, T>(request, parallel);
  });
}

void indrnn_backward(const IndRnnBackwardRequest& request, const Parallel& parallel) {
  with_real(request.storage, [&](auto real) {
    using T = typename decltype(real)::type;
    request.relu ? independent_backward<RnnRelu, T>(request, parallel)
                 : independent_backward<RnnTanh, T>(request, parallel);
  });
}

}  // namespace bppsa::BPPSA_ISA
