// What pruned networks are made of: layers with few weights, and batch normalisation by the
// statistics of the batch, forward and backward. All strides count elements.
#pragma once

#include "plan.h"

namespace bppsa {

// A convolution with few weights, on `samples` images; a linear layer is one over images of one
// pixel. An entry of the pattern is a surviving weight: the channel it reads and its tap, the
// number ky * kernel[1] + kx of its place in the kernel. rows[c] is the first entry of output
// channel c.
//
// A ReLU may follow, and a maximum over windows of 2 x 2 pixels, the same apart (a last row or
// column that fills no window is left out): the result is then of result_size.
struct SparseConvRequest {
  Storage storage;  // f32 or f64
  bool relu, pool;
  int64_t samples, in_channels, out_channels;
  int64_t in_size[2], out_size[2], result_size[2];        // rows, columns
  int64_t kernel[2], stride[2], padding[2], dilation[2];  // padding before the first
  const void* x;
  int64_t x_stride[4];  // sample, channel, row, column
  const void* values;   // one an entry
  const int32_t* rows;  // out_channels + 1
  const int32_t* entries;
};

struct SparseForwardRequest : SparseConvRequest {
  const void* bias;  // (out_channels), or null
  void* output;      // (out_channels, result rows, columns, samples), contiguous
  uint8_t* places;   // as output, if pool: see sparse/pool.h
};

// Results are null where they are not wanted. The transposed pattern is that of the input gradient:
// its entries name the output channel that a weight reads, ordered by the phase of the input's
// pixels (row modulo stride[0], column modulo stride[1]) that it reaches, then by input channel;
// order says which value each of them has.
struct SparseBackwardRequest : SparseConvRequest {
  const void* grad;
  int64_t grad_stride[4];
  const void* output;     // the forward's, if relu and not pool; grad is then contiguous like it
  const uint8_t* places;  // the forward's, if pool; likewise
  const int32_t* rows_t;  // phases * in_channels + 1
  const int32_t* entries_t;
  const int32_t* order_t;
  void* grad_x;  // (in_channels, rows, columns, samples), contiguous
  void *grad_values, *grad_bias;
};

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
