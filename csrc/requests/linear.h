// Rows times a matrix, forward and backward: y = x W^T + b.
//
// T steps, B batch, I numbers of an input, O of a result.
#pragma once

#include "plan.h"

namespace bppsa {

struct LinearRequest {
  Storage storage;  // f32 or f64
  int64_t T, B, I, O;
  const void* x;  // (T, B, I), contiguous in I
  int64_t x_stride[2];
  const void* weight;  // (O, I)
};

struct LinearForwardRequest : LinearRequest {
  const void* bias;  // (O), or null
  void* output;      // (T, B, O)
};

// Results are null where they are not wanted.
struct LinearBackwardRequest : LinearRequest {
  const void* grad;  // (T, B, O)
  void* grad_x;      // (T, B, I)
  void *grad_weight, *grad_bias;
};

}  // namespace bppsa
