// Kernels of the cell lstm.

#include "recurrent/instances.cuh"

namespace bppsa::cuda {

BPPSA_RECURRENT_INSTANCE(, LstmCell<float>)
BPPSA_RECURRENT_INSTANCE(, LstmCell<double>)
BPPSA_AGAIN_INSTANCE(, LstmCell<float>)
BPPSA_AGAIN_INSTANCE(, LstmCell<double>)
BPPSA_PROJECTED_INSTANCE(, LstmCell<float>)
BPPSA_PROJECTED_INSTANCE(, LstmCell<double>)

}  // namespace bppsa::cuda
