// A scan by the algorithm of a plan.
#pragma once

#include "blelloch.h"
#include "chunked.h"
#include "linear.h"

namespace bppsa::BPPSA_ISA {

template <class Chain>
void scan(const Chain& chain, const Plan& plan, const Parallel& parallel) {
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(chain, parallel);
    case Algorithm::chunked:
      return chunked_scan(chain, plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(chain, plan.levels, parallel);
  }
}

}  // namespace bppsa::BPPSA_ISA
