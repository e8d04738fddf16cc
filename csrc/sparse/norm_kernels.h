// What the operators of batch normalisation ask of a CPU kernel; see cpu/kernels.h.
#pragma once

#include <cstdint>

namespace bppsa {

enum class Storage;
struct Parallel;

// Each channel's numbers, those of all samples and pixels, lie one after another: (channels, n).
struct NormArgs {
  Storage storage;  // f32 or f64
  int64_t channels, n;
  double eps;
  bool relu;           // whether a ReLU follows
  const void* x;       // (channels, n)
  const void* weight;  // (channels), or null for ones
  void *mean, *var;    // (channels): of the batch, var over n
  void* y;             // (channels, n): the result
};

struct NormForwardArgs : NormArgs {
  const void* bias;  // (channels), or null for zeros
};

struct NormBackwardArgs : NormArgs {
  const void* grad;               // (channels, n)
  void* grad_x;                   // (channels, n)
  void *grad_weight, *grad_bias;  // (channels)
};

struct NormKernels {
  void (*forward)(const NormForwardArgs&, const Parallel&);
  void (*backward)(const NormBackwardArgs&, const Parallel&);
};

// The table for this machine, as kernels() chooses it.
const NormKernels& norm_kernels();

}  // namespace bppsa
