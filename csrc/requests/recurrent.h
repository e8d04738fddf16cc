// One recurrent layer, forward and backward.
//
// T steps, B batch, I input, H state, P projected state, G gates. All strides count elements and
// may be negative.
#pragma once

#include "plan.h"

namespace bppsa {

enum class CellKind : int;  // the rows of cells/list.h

// How much a forward keeps for its backward.
enum class Keep : int { nothing, least, all };

// One recurrent layer in one direction. All tensors contiguous but for the strides given, of steps
// and of samples; a layer that runs backwards in time has negative ones, and its pointers at the
// last step. On CUDA samples lie side by side, but those of x and of grad.
struct RecurrentRequest {
  Storage storage;  // f32 or f64
  CellKind cell;
  int64_t T, B, I, H, P;  // P = H unless w_hr is given
  const void* x;          // (T, B, I), contiguous in I
  int64_t x_stride[2];
  const void *h0, *c0;       // (B, P), (B, H), or null for zeros
  const void *w_ih, *w_hh;   // (GH, I), or null: x is the gates' part; (GH, P)
  const void *b_ih, *b_hh;   // (GH), or null
  const void* w_hr;          // (P, H), or null
  int64_t output_stride[2];  // of the output: (T, B, P), h_1 ... h_T
  int64_t kept_width;        // of what the forward keeps for the backward: (T, B, kept_width)
  int64_t kept_stride[2];
  // Windows of time, on CUDA, walked side by side; 0: one walk. T = head + windows * span, the head
  // part of the first window. A window begins with what `warm` steps beside it lead to, from zeros:
  // those before it; backwards, those behind it. That is written to begun_h (windows * B, P) and
  // begun_c (windows * B, H); with warm = 0 it is read there. (Not of the window that begins, or
  // ends, with the sequence.) What windows end with has a row for each as well: h_n, c_n;
  // backwards grad_h0, grad_c0.
  int64_t windows, span, warm;
  void *begun_h, *begun_c;
  // Samples of different lengths, on the CPU: of sample b what follows step lengths[b] is padding,
  // in which its c stands still; it is not walked but for a few steps, and put out as 0. They are
  // walked in so many groups, in each of which lengths fall. Null: all have T steps.
  const int64_t* lengths;  // (B)
  int64_t groups;
};

struct RecurrentForwardRequest : RecurrentRequest {
  void *output, *kept;
  void* c_n;  // (B, H), where the cell has a c
};

// Results are null where they are not wanted.
struct RecurrentBackwardRequest : RecurrentRequest {
  const void *output, *kept;
  const void* grad;  // (T, B, P), contiguous in P: u_1 ... u_T, or null for zeros
  int64_t grad_stride[2];
  const void *grad_hn, *grad_cn;  // (B, P), (B, H): added to the direct gradient of the last state
  void* grad_x;                   // (T, B, I)
  int64_t grad_x_stride[2];
  void *grad_h0, *grad_c0;
  void *grad_w_ih, *grad_w_hh, *grad_b_ih, *grad_b_hh, *grad_w_hr;
};

// The Jacobian of all steps, as of a backward into which nothing enters.
struct RecurrentJacobianRequest : RecurrentBackwardRequest {
  void* jacobian;  // (B, S, S), S = P, and H more where the cell has a c
};

}  // namespace bppsa
