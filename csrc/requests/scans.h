// Reverse scans over Jacobians that the caller gives.
//
// T steps, B batch, H state. All strides count elements and may be negative: a scan whose time runs
// the other way begins at the other end.
#pragma once

#include "plan.h"

namespace bppsa {

struct ScanRequest {
  Storage storage;
  int64_t T, B, H;
  const void* grad;        // u_0 ... u_T
  int64_t grad_stride[3];  // step, sample, state
  void* out;               // g_0 ... g_T, contiguous (B, H) each
  int64_t out_step;
};

// g_T = u_T,  g_t = J_{t+1}^T g_{t+1} + u_t; J_t^T lies at jac_t + (t - 1) * jac_stride[0].
struct DenseScanRequest : ScanRequest {
  const void* jac_t;
  int64_t jac_stride[4];  // step, sample, row, column
};

// g_T = u_T,  g_t = decay_{t+1} g_{t+1} + u_t, element by element; decay_t lies likewise.
struct DiagonalScanRequest : ScanRequest {
  const void* decay;
  int64_t decay_stride[3];  // step, sample, state
};

}  // namespace bppsa
