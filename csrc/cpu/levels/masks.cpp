// Random masks and dropout, of one instruction set.
#include "../../recurrent/dropout.h"
#include "../../recurrent/random_mask.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

void random_mask(const MaskRequest& request, const Parallel& parallel) {
  draw_mask(request, parallel);
}

void bernoulli(const BernoulliRequest& request, const Parallel&) { draw_bernoulli(request); }

void masked(const MaskedRequest& request, const Parallel& parallel) {
  with_real(request.storage,
            [&](auto real) { multiply_masked<typename decltype(real)::type>(request, parallel); });
}

}  // namespace bppsa::BPPSA_ISA
