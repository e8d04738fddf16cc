#pragma once
// Each product that is not trusted is counted: results that are right only because products are
// walked around would otherwise hide a wrong product.
//
// Every source counts for itself. So a kernel that counts must be compiled in one source only:
// tests/csrc/test_sources.py sees to it.

#include "launcher.cuh"

#ifdef __CUDACC__

#include <vector>

namespace bppsa::cuda {

/// Those who know the counts, on the current device, one of each source; each waits for the device.
inline std::vector<unsigned long long (*)()>& untrusted_counts() {
  static std::vector<unsigned long long (*)()> counts;
  return counts;
}

namespace {

__device__ unsigned long long untrusted_products;

__device__ __forceinline__ void report_untrusted() { atomicAdd(&untrusted_products, 1ull); }

unsigned long long untrusted_here() {
  unsigned long long count = 0;
  check(cudaDeviceSynchronize(), "waiting for the device");
  // Sources that are not compiled for this device have counted nothing.
  const auto error = cudaMemcpyFromSymbol(&count, untrusted_products, sizeof(count));
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidSymbol) {
    (void)cudaGetLastError();
    return 0;
  }
  check(error, "reading a count");
  return count;
}
[[maybe_unused]] const bool untrusted_known = (untrusted_counts().push_back(untrusted_here), true);

}  // namespace
}  // namespace bppsa::cuda

#endif
