// What the operators ask of a CPU kernel: plain structs and function pointers, so that
// kernels.cpp can be compiled for several instruction sets and one table chosen at load.
//
// T steps, B batch, H state, I input. All strides count elements and may be negative.
#pragma once

#include <cstdint>

namespace bppsa {

enum class Storage { f32, f64, bf16, f16 };
enum class Algorithm { linear, chunked, blelloch };
// How an RNN cell's slope phi'(z) is had from what the forward kept: from tanh's or relu's
// output, or it is itself what was kept (`given`: the double backward's scan).
enum class Nonlinearity { tanh, relu, given };

struct Plan {
  Algorithm algorithm;
  int64_t chunk;   // steps a chunk (chunked)
  int64_t levels;  // up-sweep levels (blelloch)
};

// Runs body(context, begin, end) over [0, n) on torch's threads, in contiguous shares.
struct Parallel {
  int threads;
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

struct RnnForwardArgs {
  Storage storage;  // f32 or f64
  Nonlinearity nonlinearity;
  int64_t T, B, H, I;
  const void* x;  // (T, B, I), contiguous in I
  int64_t x_stride[2];
  const void* h0;    // (B, H) contiguous, or null for zeros
  const void* w_ih;  // (H, I) contiguous
  const void* w_hh;  // (H, H) contiguous
  const void* b_ih;  // (H) contiguous, or null
  const void* b_hh;
  void* output;  // (T, B, H) contiguous: h_1 ... h_T
};

// J_t^T = w_hh^T diag(phi'(z_t)); grad_z_t = phi'(z_t) * g_t.
struct RnnBackwardArgs {
  Storage storage;
  Nonlinearity nonlinearity;
  int64_t T, B, H;
  const void* kept;  // (T, B, H) contiguous: h_1 ... h_T, or the slopes themselves
  const void* w_hh;  // (H, H) contiguous
  const void* grad;  // (T, B, H), contiguous in H: u_1 ... u_T, or null for zeros
  int64_t grad_stride[2];
  const void* grad_last;  // (B, H) contiguous, added to u_T, or null
  void* grad_z;           // (T, B, H) contiguous
  void* grad_h0;          // (B, H) contiguous
};

struct Kernels {
  const char* name;
  void (*dense_scan)(const DenseScanArgs&, const Plan&, const Parallel&);
  void (*diagonal_scan)(const DiagonalScanArgs&, const Plan&, const Parallel&);
  void (*rnn_forward)(const RnnForwardArgs&, const Parallel&);
  void (*rnn_backward)(const RnnBackwardArgs&, const Plan&, const Parallel&);
};

// The table for this machine (or for BPPSA_CPU_CAPABILITY, if set), chosen once.
const Kernels& kernels();

}  // namespace bppsa
