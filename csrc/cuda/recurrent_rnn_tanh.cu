// Kernels of the cell rnn_tanh.

#include "recurrent/instances.cuh"

namespace bppsa::cuda {

BPPSA_RECURRENT_INSTANCE(, RnnTanh<float>)
BPPSA_RECURRENT_INSTANCE(, RnnTanh<double>)

}  // namespace bppsa::cuda
