// A recurrent layer with layer normalisation, recurrent dropout or zoneout: what its forward and
// its backward share.
//
//   x_t = the input's sums: given, or W_ih times it + b_ih, or norm_ih LN(W_ih …) + b_ih
//   s_t = W_hh (m h_{t-1}) + b_hh,  or normalised: norm_hh LN(W_hh (m h_{t-1})) + b_hh,
//         or of independent units: w_hh m h_{t-1} + b_hh, unit by unit
//   new state = the cell's formula of x_t + s_t and the old state; normalised, an LSTM shows
//               o tanh(norm_c LN(c) + b_c)
//   state t   = the old state where a unit is kept, else (1 - p) new + p old
//
// with LN(v) = (v - mean v) / sqrt(var v + 1e-5) over some gates of a sample at once, m a mask of a
// sample. Formulas are those of cells/, of rows of H units as they lie: a normalisation needs a
// sample's whole row before the formula, so nothing is gained by panels of slots as in step.h. Each
// thread walks samples of its own from end to end.
#pragma once

#include "../cells/list.h"
#include "../simd/long_matrix.h"
#include "layer_norm.h"
#include "slots.h"

namespace bppsa::BPPSA_ISA {

// The tensors of one layer, typed; rows of a step t = 0 ... T - 1 from sample b on.
template <class Cell, bool kNormalised, typename T_>
struct RegularisedLayer {
  using T = T_;
  using Saved = SavedRow<Cell, kNormalised>;

  const RegularisedRequest& request;
  const int64_t steps = request.T, B = request.B, H = request.H, GH = Cell::kGates * H;
  const int64_t I = request.I;
  // The input, or with null w_ih its sums.
  const StepRows<const T> x{typed(request.x), request.x_stride[0], request.x_stride[1]};
  const T *const w_ih = typed(request.w_ih), *const b_ih = typed(request.b_ih);
  const T* const norm_ih = typed(request.norm_ih);
  const ConstRows<T> h0{typed(request.h0), H}, c0{typed(request.c0), H};
  const ConstRows<T> enters{typed(request.enters), H};
  const T *const w_hh = typed(request.w_hh), *const b_hh = typed(request.b_hh);
  const T *const norm_hh = typed(request.norm_hh), *const norm_c = typed(request.norm_c);
  const T* const b_c = typed(request.b_c);
  const bool blends = request.blends();
  const int64_t width = request.saved_width;  // of a SavedRow
  const T share = T(request.zoneout);

  // Known of most cells as they are compiled, which spares their code for it.
  bool diagonal() const { return Cell::kGates == 1 && request.diagonal; }

  // What the state's sums begin with.
  const T* shift() const { return kNormalised || kSeesC<Cell> ? nullptr : b_hh; }

  // Of all gates, from unit k on; zeros where none are given.
  template <class Units, class V>
  BPPSA_INLINE void peepholes(Units units, int64_t k, V (&p)[Cell::kGates]) const {
    for (int gate = 0; gate < Cell::kGates; ++gate)
      p[gate] = b_hh ? units.load(b_hh + gate * H + k) : V{};
  }

  // Where the row is saved that is walked `ahead` rows after row r of step t, of n samples from b
  // on; null for none. It is asked for bit by bit: a processor by itself fetches within a page,
  // which is little more than a row (unless one row follows the other), and a row at once is more
  // than it fetches beside other things.
  template <int kDirection, typename U>
  U* later_row(U* saved, int64_t t, int64_t b, int64_t n, int64_t r, int64_t ahead) const {
    const int64_t step = t + kDirection * ((r + ahead) / n);
    if (!saved || n == 1 || step < 0 || step >= steps) return nullptr;
    return saved + (step * B + b + (r + ahead) % n) * width;
  }

  // Of part 0, h, or part 1, c.
  const uint8_t* kept(int part, int64_t t, int64_t b) const {
    const uint8_t* all = part ? request.kept_c : request.kept_h;
    return all ? all + t * request.kept_step + b * H : nullptr;
  }

  static const T* typed(const void* data) { return static_cast<const T*>(data); }
};

}  // namespace bppsa::BPPSA_ISA
