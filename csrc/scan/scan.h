// A scan by the algorithm of a plan.
#pragma once

#include "blelloch.h"
#include "chunked.h"
#include "linear.h"

namespace bppsa::BPPSA_ISA {

template <class Cell>
void scan(const Cell& cell, const Plan& plan, const Parallel& parallel) {
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(cell, parallel);
    case Algorithm::chunked:
      return chunked_scan(cell, plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(cell, plan.levels, parallel);
  }
}

}  // namespace bppsa::BPPSA_ISA
