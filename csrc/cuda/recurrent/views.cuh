#pragma once
// A recurrent layer in one direction as its kernels see it: views of memory that own nothing and
// are passed by value. T steps, B samples, I inputs, H units, P numbers of a projected state.

#include "tape.cuh"

namespace bppsa::cuda {

// x (T, B, I): numbers side by side, any strides of t and b.
template <typename Real>
struct Inputs {
  const Real* data;
  int64_t step, sample;
  int64_t B;

  BPPSA_DEVICE Real operator()(int64_t row, int64_t i) const {  // row = t * B + b, below 2^32
    const uint32_t t = static_cast<uint32_t>(row) / static_cast<uint32_t>(B);
    return data[t * step + (row - t * B) * sample + i];
  }
};

// Windows of a chain (requests/recurrent.h); one is the whole chain.
struct Windows {
  int64_t n, head, span, warm;

  BPPSA_BOTH int64_t first(int64_t k) const { return k > 0 ? head + k * span : 0; }
};

template <typename Number>
BPPSA_BOTH Number* moved(Number* numbers, int64_t by) {
  return numbers ? numbers + by : nullptr;
}

// One walk of one sample: pointers at its first step, and from step to step.
template <typename Real>
struct ForwardWalk {
  int64_t steps, input_step, row_step;
  const Real *input, *h0, *c0;  // null for zeros
  Real* output;
  Quad<Real>* gates;
  Real *c, *h_n, *c_n;
};

template <typename Real>
struct ForwardView {
  int64_t T, B;
  int H;
  bool reverse;
  const Real* input;  // x with its strides, or the product
  int64_t input_step, input_sample;
  const Real *w_ih, *w_hh, *b_ih, *b_hh, *h0, *c0;
  Real* output;
  Quad<Real>* gates;  // null to keep nothing
  Real* c;
  Real *h_n, *c_n;
  Windows windows;
  Real *begun_h, *begun_c;

  /// Task k * B + b, window k of sample b: its warm-up, all of whose states take one place, or its
  /// own steps.
  BPPSA_DEVICE ForwardWalk<Real> walk(int64_t task, bool warms) const {
    const int64_t k = task / B, b = task % B, at = task * H;
    const int64_t first = windows.first(k) - (warms ? windows.warm : 0);
    const int64_t start = reverse ? T - 1 - first : first, row = (start * B + b) * H;
    ForwardWalk<Real> walk{windows.first(k + 1) - first, reverse ? -input_step : input_step,
                           reverse ? -B * H : B * H, input + start * input_step + b * input_sample};
    if (warms) {
      walk.steps = windows.warm, walk.row_step = 0;
      walk.output = walk.h_n = begun_h + at, walk.c_n = moved(begun_c, at);
      return walk;
    }
    walk.h0 = k > 0 ? begun_h + at : moved(h0, b * H);
    walk.c0 = k > 0 ? moved(begun_c, at) : moved(c0, b * H);
    walk.output = output + row;
    walk.gates = moved(gates, row), walk.c = moved(c, row);
    walk.h_n = h_n + at, walk.c_n = moved(c_n, at);
    return walk;
  }
};

template <typename Real>
struct BackwardView {
  int64_t T, B;  // B: samples to work on
  int64_t all;   // samples of the layer
  int H;
  bool reverse;
  Tape<Real> tape;
  const Real* w_hh;
  const Real* grad_output;  // u, null for zeros; strides of t and b
  int64_t grad_step, grad_sample;
  const Real *grad_h_n, *grad_c_n;  // (B, H), null for zeros
  Real* rows;                       // (T, B, kRows, H): gate gradients
  Real *grad_h0, *grad_c0;          // (B, H), null if not wanted
  Windows windows;
  Real *begun_h, *begun_c;

  BPPSA_BOTH int64_t time(int64_t i) const { return reverse ? T - 1 - i : i; }
  /// The place of unit 0 of sample b at chain step i, and the distance to the step before.
  BPPSA_BOTH int64_t row(int64_t i, int64_t b) const { return (time(i) * all + b) * H; }
  BPPSA_BOTH int64_t row_step() const { return reverse ? -all * H : all * H; }

  /// The same for samples b … b + n - 1; kRows as the cell's.
  template <int kRows>
  BackwardView of_samples(int64_t b, int64_t n) const {
    BackwardView part = *this;
    part.B = n;
    const auto move = [](auto& pointer, int64_t by) { pointer = moved(pointer, by); };
    part.tape = tape.from(b * H, b * H);
    part.rows += b * H * kRows;
    move(part.grad_output, b * grad_sample);
    move(part.grad_h_n, b * H), move(part.grad_c_n, b * H);
    move(part.grad_h0, b * H), move(part.grad_c0, b * H);
    return part;
  }

  /// c before the step of a place of the tape.
  BPPSA_DEVICE Real c_before(int64_t place) const {
    const int64_t step = all * H, t = place / step;
    if (t == time(0)) return tape.c0 ? tape.c0[place % step] : Real(0);
    return tape.c[reverse ? place + step : place - step];
  }
  BPPSA_DEVICE Real direct(int64_t i, int64_t b, int unit) const {
    return grad_output ? grad_output[time(i) * grad_step + b * grad_sample + unit] : Real(0);
  }
  /// State `s` of `unit` at the end of the chain.
  BPPSA_DEVICE Real last(int s, int64_t b, int unit) const {
    const Real* from = s == 0 ? grad_h_n : grad_c_n;
    const Real own = from ? from[b * H + unit] : Real(0);
    return s == 0 ? own + direct(T - 1, b, unit) : own;
  }
  /// The gradient of the initial state; of windows, of what they begin with, in row k * B + b.
  template <int S>
  BPPSA_DEVICE void finish(int64_t row, int unit, const Real (&g)[S]) const {
    if (grad_h0) grad_h0[row * H + unit] = g[0];
    if (S == 2 && grad_c0) grad_c0[row * H + unit] = g[S - 1];
  }
  /// What the walk of a window begins with, at its end: (n * B, H).
  BPPSA_DEVICE Real* begun(int s) const { return s == 0 ? begun_h : begun_c; }
  template <int S>
  BPPSA_DEVICE void begin(int64_t row, int unit, const Real (&g)[S]) const {
#pragma unroll
    for (int s = 0; s < S; ++s) begun(s)[row * H + unit] = g[s];
  }
};

template <typename Real>
struct ParameterGradients {  // null: not wanted
  Real *w_ih, *w_hh, *b_ih, *b_hh;

  explicit operator bool() const { return w_ih || w_hh || b_ih || b_hh; }
};

}  // namespace bppsa::cuda
