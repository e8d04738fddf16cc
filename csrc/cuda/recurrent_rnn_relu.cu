// Kernels of the cell rnn_relu.

#include "recurrent/instances.cuh"

namespace bppsa::cuda {

BPPSA_RECURRENT_INSTANCE(, RnnRelu<float>)
BPPSA_RECURRENT_INSTANCE(, RnnRelu<double>)

}  // namespace bppsa::cuda
