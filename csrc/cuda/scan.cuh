#pragma once
// One door to the scan algorithms, by name. The arguments have been checked by then.

#include <string>

#include "scan_blelloch.cuh"

namespace bppsa::cuda {

template <class Cell>
void scan(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
          const std::string& algorithm, int64_t chunk, int64_t levels, Launcher& launch) {
  if (chain.B == 0) return;
  if (algorithm == "chunked") return scan_chunked(chain, out, chunk, launch);
  if (algorithm == "blelloch") return scan_blelloch(chain, out, levels, launch);
  scan_linear(chain, out, launch);
}

/// The scan of a dense chain; the adjoint is the same scan over the same memory read from the other
/// end.
template <typename scalar_t>
void scan_dense(DenseCell<scalar_t> cell, Vectors<const scalar_t> grad, Vectors<scalar_t> out,
                int64_t T, int64_t B, int64_t H, bool adjoint, const std::string& algorithm,
                int64_t chunk, int64_t levels, Launcher& launch) {
  if (adjoint) {
    cell = adjoint_of(cell, T);
    grad = adjoint_of(grad, T);
    out = adjoint_of(out, T);
  }
  const Chain<DenseCell<scalar_t>> chain{cell, grad, T, B, static_cast<int>(H)};
  scan(chain, out, algorithm, chunk, levels, launch);
}

}  // namespace bppsa::cuda
