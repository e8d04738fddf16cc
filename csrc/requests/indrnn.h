// An independently recurrent layer, h_t = phi(x_t + u h_{t-1}) unit by unit, forward and backward.
//
// T steps, B batch, H state. All strides count elements and may be negative: a layer that runs
// backwards in time has its pointers at the last step.
#pragma once

#include "plan.h"

namespace bppsa {

struct IndRnnRequest {
  Storage storage;  // f32 or f64
  bool relu;        // what phi is; else tanh
  int64_t T, B, H;
  const void* u;   // (H)
  const void* h0;  // (B, H), or null for zeros
  int64_t step;    // of output and grad_x: (T, B, H), samples side by side
};

struct IndRnnForwardRequest : IndRnnRequest {
  const void* x;  // (T, B, H), contiguous in H
  int64_t x_stride[2];
  void *output, *h_n;
};

struct IndRnnBackwardRequest : IndRnnRequest {
  const void* output;
  const void* grad;  // (T, B, H), contiguous in H, or null for zeros
  int64_t grad_stride[2];
  const void* grad_hn;     // (B, H), or null: added to the direct gradient of the last state
  void* grad_x;            // also the gradient of the sums
  void *grad_h0, *grad_u;  // null where they are not wanted
};

}  // namespace bppsa
