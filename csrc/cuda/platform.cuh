#pragma once
// The few CUDA words the kernels use, for nvcc; without nvcc, a host emulator that runs the very
// same sources thread by thread, so that they can be tested where there is no GPU.

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include "launcher.cuh"

namespace bppsa::cuda {

// The block's dynamic shared memory; its size is an argument of the launch.
__device__ __forceinline__ unsigned char* shared_memory() {
  extern __shared__ __align__(16) unsigned char bytes[];
  return bytes;
}

// Each product that is not trusted is reported here. The emulator counts them: results that are
// right only because products are walked around would otherwise hide a wrong product.
__device__ __forceinline__ void report_untrusted() {}

}  // namespace bppsa::cuda
#else
#include "emulator.h"
#endif

#define BPPSA_DEVICE __device__ __forceinline__
#define BPPSA_BOTH __host__ __device__ __forceinline__
