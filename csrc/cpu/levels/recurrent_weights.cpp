// The weights of recurrent layers, whatever the cell, of one instruction set: rearranged for a
// call, and their gradients.
#include "../../recurrent/gradients.h"
#include "../../recurrent/packed_weights.h"

namespace bppsa::BPPSA_ISA {

template class PackedWeights<float, 1>;
template class PackedWeights<float, 4>;
template class PackedWeights<double, 1>;
template class PackedWeights<double, 4>;
template struct BackwardWeights<float>;
template struct BackwardWeights<double>;
template class ParameterGradients<float>;
template class ParameterGradients<double>;

}  // namespace bppsa::BPPSA_ISA
