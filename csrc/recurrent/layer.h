// What the loops of a recurrent layer hand each other.
//
// T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
// projection), G gates of H pre-activations. "Padded" is H or P rounded up, see simd/unit_blocks.h.
// Tensors of the caller have rows of just H or P numbers; everything inside the kernels, and what
// the forward keeps for the backward, is padded.
#pragma once

#include "../requests/recurrent.h"
#include "../simd/rows.h"
#include "../simd/unit_blocks.h"

namespace bppsa::BPPSA_ISA {

// A cell's formula (cells/cell.h) for one type of numbers.
template <class Formula, typename T_>
struct CellOf : Formula {
  using T = T_;
};

// The weights as a cell's forward reads them, see packed_weights.h.
template <typename T>
struct ForwardWeights {
  int64_t I, P, H, padded;
  const T* x;     // I rows of all slots, in panels
  const T* h;     // P rows of all slots, in panels
  const T* bias;  // all slots
  const T* p;     // of a cell with peepholes, all gates; or null for zeros
};

// One step of the forward for n samples.
template <typename T>
struct ForwardStep {
  int64_t n;
  ConstRows<T> x;       // inputs (I), or
  ConstRows<T> x_part;  // their part of the pre-activations, if computed before: FromX's columns
  ConstRows<T> h;       // the state before the step (P)
  ConstRows<T> before;  // what the formula takes of it, padded: c of a cell with two states, else h
  Rows<T> gates;        // result: the slots as the cell keeps them
  Rows<T> c_next;       // result, padded; may be c
  Rows<T> kept_c;       // result: c once more, or null
  Rows<T> out;          // result: the state after the step, padded; before the projection
  Rows<T> output;       // result: the state once more, H numbers a row, or null
};

// One step of the backward for n rows of gradients: samples (each with its own step kept), or the
// rows of a product of Jacobians (all with the same, ld = 0).
template <typename T>
struct BackwardStep {
  int64_t n;
  ConstRows<T> g;       // g_t: dL/dh_t (padded P), then, for an LSTM, dL/dc_t (padded H)
  ConstRows<T> kept;    // by the forward
  ConstRows<T> h;       // h_t (P)
  ConstRows<T> h_prev;  // h_{t-1} (P)
  ConstRows<T> c_prev;  // c_{t-1}: c_width numbers a row
  int64_t c_width;      // H or padded
  ConstRows<T> direct;  // u_{t-1} (P)
  Rows<T> d;            // result: gradients of the pre-activations, padded, see the cell
  Rows<T> out;          // result: g_{t-1}
  T* scratch;           // n x padded H
};

// The tensors of one layer, typed.
template <typename T>
struct Layer {
  const RecurrentRequest& request;
  const int64_t steps = request.T, B = request.B, I = request.I, P = request.P;
  // A layer may be a part of another, whose state it sees: units [first, first + H) of `all`.
  const int64_t all = request.H, first, H;
  const int64_t all_padded = padded_units<T>(all), padded = padded_units<T>(H);
  const int64_t shown = request.w_hr ? P : H;  // of the state that is put out, the part's
  const int64_t padded_P = padded_units<T>(shown);
  // Of step 1 and on; what the forward kept: all that the cell wants, an LSTM's c alone, or
  // nothing.
  const StepRows<const T> inputs{typed(request.x), request.x_stride[0], request.x_stride[1]};
  const StepRows<const T> output, kept;
  const ConstRows<T> h0{typed(request.h0), P}, c0{typed(request.c0), all};
  const T *const w_ih = typed(request.w_ih), *const w_hh = typed(request.w_hh);
  const T *const b_ih = typed(request.b_ih), *const b_hh = typed(request.b_hh);
  const T* const w_hr = typed(request.w_hr);

  template <class Request>
  explicit Layer(const Request& request) : Layer(request, 0, request.H) {}
  template <class Request>
  Layer(const Request& request, int64_t first, int64_t units)
      : request(request),
        first(first),
        H(units),
        output{typed(request.output), request.output_stride[0], request.output_stride[1]},
        kept{typed(request.kept), request.kept_stride[0], request.kept_stride[1]} {}

  // Step t = 1 ... T takes x(t) and the state t - 1 to the state t.
  ConstRows<T> x(int64_t t, int64_t b) const { return inputs.at(t - 1, b); }
  ConstRows<T> h(int64_t t, int64_t b) const { return t > 0 ? output.at(t - 1, b) : h0.from(b); }
  // An LSTM's c_t: c_width(t) numbers, where it was kept the last ones of a row.
  ConstRows<T> c(int64_t t, int64_t b) const {
    if (t == 0) return c0.from(b);
    const ConstRows<T> row = kept.at(t - 1, b);
    return {row.data + request.kept_width - all_padded, row.ld};
  }
  int64_t c_width(int64_t t) const { return t > 0 ? padded : H; }

 private:
  static const T* typed(const void* data) { return static_cast<const T*>(data); }
};

}  // namespace bppsa::BPPSA_ISA
