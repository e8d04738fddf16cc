// Kernels of the cell gru.

#include "recurrent/instances.cuh"

namespace bppsa::cuda {

BPPSA_RECURRENT_INSTANCE(, GruCell<float>)
BPPSA_RECURRENT_INSTANCE(, GruCell<double>)
BPPSA_AGAIN_INSTANCE(, GruCell<float>)
BPPSA_AGAIN_INSTANCE(, GruCell<double>)

}  // namespace bppsa::cuda
