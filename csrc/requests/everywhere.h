// Functions that every compiler inlines: for CUDA on host and device, for an instruction set
// without a symbol that another one's could be taken for.
#pragma once

#ifdef __CUDACC__
#define BPPSA_EVERYWHERE __host__ __device__ __forceinline__
#else
#define BPPSA_EVERYWHERE inline __attribute__((always_inline))
#endif
