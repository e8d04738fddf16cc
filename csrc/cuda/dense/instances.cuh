#pragma once
// What other chains call of the dense scans: compiled in scans.cu, for float and double.

#include "../launcher.cuh"
#include "chain.cuh"

namespace bppsa::cuda {

template <typename scalar_t>
void scan_blelloch(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t levels,
                   Launcher& launch);

}  // namespace bppsa::cuda
