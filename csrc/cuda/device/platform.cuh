#pragma once
// The few CUDA words the kernels use, for nvcc; without nvcc, a host emulator that runs the very
// same sources thread by thread, so that they can be tested where there is no GPU.

#ifdef __CUDACC__
#include <cuda_runtime.h>

namespace bppsa::cuda {

// The block's dynamic shared memory; its size is an argument of the launch.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

// Whether this code is compiled for a device that has clusters of blocks.
#if __CUDA_ARCH__ >= 900
constexpr bool kHasClusters = true;
#else
constexpr bool kHasClusters = false;
#endif

// Clusters of blocks: a store into the shared memory of block `rank`, at the place that `to` is in
// this block's, and the barrier of all threads of the cluster. Never called before sm_90.
__device__ __forceinline__ void store_in_cluster(float* to, float value, unsigned rank) {
#if __CUDA_ARCH__ >= 900
  const auto own = static_cast<unsigned>(__cvta_generic_to_shared(to));
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" : : "r"(there), "f"(value) : "memory");
#else
  __trap();
#endif
}
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
#else
  __trap();
#endif
}

}  // namespace bppsa::cuda
#else
#include "../../testing/emulator.h"
#endif

namespace bppsa::cuda {

constexpr int kWarp = 32;  // threads

}  // namespace bppsa::cuda

#define BPPSA_DEVICE __device__ __forceinline__
#define BPPSA_BOTH __host__ __device__ __forceinline__
