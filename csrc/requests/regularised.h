// One recurrent layer with layer normalisation, recurrent dropout or zoneout, in one direction.
//
// T steps, B batch, H state, G gates. All strides count elements and may be negative: a layer that
// runs backwards in time has its pointers at the last step.
#pragma once

#include "everywhere.h"
#include "plan.h"

namespace bppsa {

enum class CellKind : int;  // the rows of cells/list.h

// What a forward saves of a step of a sample: rows of H numbers (recurrent/regularised.h), and four
// more where sums are normalised.
BPPSA_ON_HOST constexpr int64_t regularised_width(int slots, int states, int normalised_gates,
                                                  int64_t H) {
  return (slots + (states == 2 ? 2 : 0) + normalised_gates) * H + (normalised_gates ? 4 : 0);
}

struct RegularisedRequest {
  Storage storage;  // f32 or f64
  CellKind cell;
  bool diagonal;  // of a cell with one gate: units hand their state to themselves alone
  int64_t T, B, H;
  const void *h0, *c0;  // (B, H), or null for zeros
  const void* w_hh;     // (GH, H), or diagonal (H)
  // (GH), or null: added to the state's sums, after their normalisation; of a cell with peepholes
  // those of all gates instead.
  const void* b_hh;
  // Null where sums are not normalised: gains of the state's sums (GH), and of c (H), and what is
  // added to the normalised c (H), or null.
  const void *norm_hh, *norm_c, *b_c;
  const void* enters;  // (B, H), or null: what h is multiplied by before W_hh
  // (T, B, H) each, or null: whether a unit keeps its old state in a step. One that does not takes
  // the share `zoneout` of it.
  const uint8_t *kept_h, *kept_c;
  int64_t kept_step;
  double zoneout;
  int64_t step;         // of the output: (T, B, H), samples side by side
  int64_t saved_width;  // of what the forward saves for the backward: (T, B, saved_width)

  BPPSA_ON_HOST bool blends() const { return kept_h || kept_c || zoneout != 0; }
};

struct RegularisedForwardRequest : RegularisedRequest {
  const void* x;  // (T, B, GH), contiguous in GH: the input's sums
  int64_t x_stride[2];
  void *output, *saved;  // saved in the order in which steps are walked; null if not wanted
  void *h_n, *c_n;       // (B, H); c_n where the cell has a c
};

// Results are null where they are not wanted.
struct RegularisedBackwardRequest : RegularisedRequest {
  const void *output, *saved;
  const void* grad;  // (T, B, H), contiguous in H, or null for zeros
  int64_t grad_stride[2];
  const void *grad_hn, *grad_cn;  // (B, H), or null
  void* grad_x;                   // (T, B, GH), contiguous
  int64_t grad_x_step;
  void *grad_h0, *grad_c0;
  void *grad_w_hh, *grad_b_hh, *grad_norm_hh, *grad_norm_c, *grad_b_c;
};

}  // namespace bppsa
