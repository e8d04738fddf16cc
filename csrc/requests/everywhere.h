// Functions that every compiler inlines: for CUDA on host and device, for an instruction set
// without a symbol that another one's could be taken for.
#pragma once

// On the host alone, where they call what only the host can.
#define BPPSA_ON_HOST inline __attribute__((always_inline))

#ifdef __CUDACC__
#define BPPSA_EVERYWHERE __host__ __device__ __forceinline__
#else
#define BPPSA_EVERYWHERE BPPSA_ON_HOST
#endif
