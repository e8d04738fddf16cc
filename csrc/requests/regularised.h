// One recurrent layer with layer normalisation, recurrent dropout or zoneout, in one direction.
//
// T steps, B batch, I input, H state, G gates. All strides count elements and may be negative: a
// layer that runs backwards in time has its pointers at the last step.
#pragma once

#include "everywhere.h"
#include "plan.h"

namespace bppsa {

enum class CellKind : int;  // the rows of cells/list.h

// Numbers that a forward saves of a step of a sample where sums are normalised. Four are used; as
// many as this leave rows of whole lines of the cache what they are.
constexpr int kMomentsOfRow = 16;

// What a forward saves of a step of a sample: rows of H numbers, and these
// (recurrent/regularised_row.h).
BPPSA_ON_HOST constexpr int64_t regularised_width(int slots, int states, int normalised_gates,
                                                  bool blends, bool keeps_input, int64_t H) {
  const int of_c = states == 2 ? 1 + blends : 0, of_sums = normalised_gates * (1 + keeps_input);
  return (slots + of_c + of_sums) * H + (normalised_gates ? kMomentsOfRow : 0);
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
  // The input's sums (T, B, GH), contiguous in GH; or, on a CPU, with w_ih (GH, I) the input, whose
  // sums W_ih x + b_ih are; with norm_ih (GH) those are normalised before b_ih is added. A
  // backward needs it only with w_ih. Null where there are none: b_ih (GH), norm_ih.
  const void* x;
  int64_t x_stride[2];
  int64_t I;
  const void *w_ih, *b_ih, *norm_ih;

  BPPSA_EVERYWHERE bool blends() const { return kept_h || kept_c || zoneout != 0; }
  // Whether a forward keeps what it normalised of the input's sums: those of few inputs are made
  // again sooner than they are written and read.
  BPPSA_EVERYWHERE bool keeps_input() const { return norm_ih && I > 32; }
};

struct RegularisedForwardRequest : RegularisedRequest {
  void *output, *saved;  // saved in the order in which steps are walked; null if not wanted
  void *h_n, *c_n;       // (B, H); c_n where the cell has a c
};

// Results are null where they are not wanted.
struct RegularisedBackwardRequest : RegularisedRequest {
  const void *output, *saved;
  const void* grad;  // (T, B, H), contiguous in H, or null for zeros
  int64_t grad_stride[2];
  const void *grad_hn, *grad_cn;  // (B, H), or null
  void* grad_x;                   // (T, B, GH), or with w_ih (T, B, I), contiguous
  int64_t grad_x_step;
  void *grad_h0, *grad_c0;
  void *grad_w_hh, *grad_b_hh, *grad_norm_hh, *grad_norm_c, *grad_b_c;
  void *grad_w_ih, *grad_b_ih, *grad_norm_ih;
};

}  // namespace bppsa
