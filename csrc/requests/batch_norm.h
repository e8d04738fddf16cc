// Batch normalisation by the statistics of the batch, forward and backward.
#pragma once

#include "plan.h"

namespace bppsa {

// Each channel's numbers, those of all samples and pixels, lie one after another: (channels, n).
struct BatchNormRequest {
  Storage storage;  // f32 or f64
  int64_t channels, n;
  double eps;
  bool relu;           // whether a ReLU follows
  const void* x;       // (channels, n)
  const void* weight;  // (channels), or null for ones
  void *mean, *var;    // (channels): of the batch, var over n
  void* y;             // (channels, n): the result
};

struct BatchNormForwardRequest : BatchNormRequest {
  const void* bias;  // (channels), or null for zeros
};

struct BatchNormBackwardRequest : BatchNormRequest {
  const void* grad;               // (channels, n)
  void* grad_x;                   // (channels, n)
  void *grad_weight, *grad_bias;  // (channels)
};

}  // namespace bppsa
