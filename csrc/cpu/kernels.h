// What the operators ask of a CPU kernel: plain structs and function pointers, so that
// kernels.cpp can be compiled for several instruction sets and one table chosen at load.
//
// T steps, B batch, H state, I input, P projected state, G gates. All strides count elements and
// may be negative.
#pragma once

#include <cstdint>

namespace bppsa {

struct JacobianKernels;  // in jacobians/kernels.h

enum class Storage { f32, f64, bf16, f16 };
enum class Algorithm { linear, chunked, blelloch };
enum class RecurrentCell { rnn_tanh, rnn_relu, gru, lstm };

struct Plan {
  Algorithm algorithm;
  int64_t chunk;   // steps a chunk (chunked)
  int64_t levels;  // up-sweep levels (blelloch)
};

// Runs body(context, begin, end) over [0, n) on torch's threads, in contiguous shares.
struct Parallel {
  int threads;
  bool flush_denormals;  // see cpu/denormals.h
  void (*run)(int64_t n, void* context, void (*body)(void*, int64_t, int64_t));
};

// g_T = u_T,  g_t = J_{t+1}^T g_{t+1} + u_t; J_t^T lies at jac_t + (t - 1) * jac_stride[0].
struct DenseScanArgs {
  Storage storage;
  int64_t T, B, H;
  const void* jac_t;
  int64_t jac_stride[4];  // step, sample, row, column
  const void* grad;       // u_0 ... u_T
  int64_t grad_stride[3];
  void* out;  // g_0 ... g_T
  int64_t out_stride[2];
};

// g_T = u_T,  g_t = decay_{t+1} g_{t+1} + u_t, element by element; decay_t lies at
// decay + (t - 1) * decay_stride[0].
struct DiagonalScanArgs {
  Storage storage;
  int64_t T, B, H;
  const void* decay;
  int64_t decay_stride[3];  // step, sample, state
  const void* grad;         // u_0 ... u_T
  int64_t grad_stride[3];
  void* out;  // g_0 ... g_T, contiguous (B, H) each
  int64_t out_step;
};

// One recurrent layer in one direction. All tensors contiguous but for the strides given; a layer
// that runs backwards in time has negative ones, and its pointers at the last step.
struct RecurrentArgs {
  Storage storage;  // f32 or f64
  RecurrentCell cell;
  int64_t T, B, I, H, P;  // P = H unless w_hr is given
  const void* x;          // (T, B, I), contiguous in I
  int64_t x_stride[2];
  const void *h0, *c0;      // (B, P), (B, H), or null for zeros
  const void *w_ih, *w_hh;  // (GH, I), (GH, P)
  const void *b_ih, *b_hh;  // (GH), or null
  const void* w_hr;         // (P, H), or null
  void* output;             // (T, B, P): h_1 ... h_T
  int64_t output_step;
  void* kept;  // (T, B, kept_width): what the forward keeps for the backward; see the cells
  int64_t kept_width;
};

struct RecurrentForwardArgs : RecurrentArgs {
  void* c_n;  // (B, H), LSTM
};

// Results are null where they are not wanted.
struct RecurrentBackwardArgs : RecurrentArgs {
  const void* grad;  // (T, B, P), contiguous in P: u_1 ... u_T, or null for zeros
  int64_t grad_stride[2];
  const void *grad_hn, *grad_cn;  // (B, P), (B, H): added to the direct gradient of the last state
  void* grad_x;                   // (T, B, I)
  int64_t grad_x_step;
  void *grad_h0, *grad_c0;
  void *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh, *grad_w_hr;
};

// A convolution with few weights, on `samples` images; a linear layer is one over images of one
// pixel. An entry of the pattern is a surviving weight: the channel it reads and its tap, the
// number ky * kernel[1] + kx of its place in the kernel. rows[c] is the first entry of output
// channel c.
//
// A ReLU may follow, and a maximum over windows of 2 x 2 pixels, the same apart (a last row or
// column that fills no window is left out): the result is then of result_size.
struct SparseLayerArgs {
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

struct SparseForwardArgs : SparseLayerArgs {
  const void* bias;  // (out_channels), or null
  void* output;      // (out_channels, result rows, columns, samples), contiguous
  uint8_t* places;   // as output, if pool: see csrc/sparse/window.h
};

// Results are null where they are not wanted. The transposed pattern is that of the input gradient:
// its entries name the output channel that a weight reads, ordered by the phase of the input's
// pixels (row modulo stride[0], column modulo stride[1]) that it reaches, then by input channel;
// order says which value each of them has.
struct SparseBackwardArgs : SparseLayerArgs {
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

struct Kernels {
  const char* name;
  void (*dense_scan)(const DenseScanArgs&, const Plan&, const Parallel&);
  void (*diagonal_scan)(const DiagonalScanArgs&, const Plan&, const Parallel&);
  void (*recurrent_forward)(const RecurrentForwardArgs&, const Parallel&);
  void (*recurrent_backward)(const RecurrentBackwardArgs&, const Plan&, const Parallel&);
  void (*sparse_forward)(const SparseForwardArgs&, const Parallel&);
  void (*sparse_backward)(const SparseBackwardArgs&, const Parallel&);
  const JacobianKernels* jacobians;
};

// The table for this machine (or for BPPSA_CPU_CAPABILITY, if set), chosen once.
const Kernels& kernels();

}  // namespace bppsa
