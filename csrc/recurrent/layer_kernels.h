// The kernels of one cell and dtype, as the dispatch knows them: defined in forward.h and
// backward.h, instantiated in a source of their own each.
#pragma once

#include "layer.h"

namespace bppsa::BPPSA_ISA {

template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, const Parallel& parallel);
template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                    const Parallel& parallel);

}  // namespace bppsa::BPPSA_ISA
