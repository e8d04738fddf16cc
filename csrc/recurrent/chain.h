// A recurrent layer as a chain: what the scan algorithms ask of a cell (cells/dense.h), for steps
// (lo, hi] of the layer.
//
// The state is h, for an LSTM h and c. The gradient that enters at hi and leaves at lo is the
// caller's `carry`; the gradients of the pre-activations go to `d`, rows of (step, sample).
#pragma once

#include "rows.h"

namespace bppsa::BPPSA_ISA {

template <class Cell>
using StepBackward = void (*)(const Layer<typename Cell::T>&, const Multiplier<typename Cell::T>&,
                              const BackwardStep<typename Cell::T>&);

template <class Cell_>
struct LayerChain {
  using Cell = Cell_;
  using T = typename Cell::T;

  const Layer<T>& layer;
  const RecurrentBackwardArgs& args;
  const int64_t lo, hi;
  const Rows<T> d;          // of step lo + 1, sample 0 and on
  const ConstRows<T> kept;  // likewise
  T* const carry;           // B x state
  const StepBackward<Cell> backward;
  const Multiplier<T>& w_hh;  // GH x P
  const RowsTimesMatrix<T> product;

  LayerChain(const Layer<T>& layer, const RecurrentBackwardArgs& args, const Multiplier<T>& w_hh,
             int64_t lo, int64_t hi, Rows<T> d, ConstRows<T> kept, T* carry)
      : layer(layer),
        args(args),
        lo(lo),
        hi(hi),
        d(d),
        kept(kept),
        carry(carry),
        backward(choose_backward(layer.H)),
        w_hh(w_hh),
        product(rows_times_matrix<T>(state(layer))) {}

  static int64_t state(const Layer<T>& layer) {
    return layer.P + (Cell::kCarriesCell ? layer.H : 0);
  }

  int64_t steps() const { return hi - lo; }
  int64_t batch() const { return layer.B; }
  int64_t H() const { return state(layer); }
  int64_t scratch(int64_t n) const { return n * (d.ld + layer.H); }

  void last(int64_t b, int64_t n, T* g) const {
    std::memcpy(g, carry + b * H(), n * H() * sizeof(T));
  }
  void first(int64_t b, int64_t n, const T* g) const {
    std::memcpy(carry + b * H(), g, n * H() * sizeof(T));
  }

  template <bool Final>
  void step(int64_t t, int64_t b, int64_t n, const T* g, T* out, T* scratch) const {
    BackwardStep<T> s = of_step(lo + t, b);
    s.n = n;
    s.g = {g, H()};
    s.direct = direct(args, lo + t - 1, b);
    s.d = Final ? d.from((t - 1) * batch() + b) : Rows<T>{scratch, d.ld};
    s.out = {out, H()};
    s.scratch = scratch + n * d.ld;
    backward(layer, w_hh, s);
  }

  void materialise(int64_t t, int64_t b, T* P) const {
    const int64_t S = H();
    Buffer<T> memory(S * S + scratch(S));
    std::memset(memory.data, 0, S * S * sizeof(T));
    for (int64_t i = 0; i < S; ++i) memory.data[i * (S + 1)] = 1;
    compose(t, b, S, memory.data, P, memory.data + S * S);
  }

  void compose(int64_t t, int64_t b, int64_t rows, const T* P, T* out, T* scratch) const {
    BackwardStep<T> s = of_step(lo + t, b);
    s.kept.ld = s.h.ld = s.h_prev.ld = s.c_prev.ld = 0;
    s.n = rows;
    s.g = {P, H()};
    s.d = {scratch, d.ld};
    s.out = {out, H()};
    s.scratch = scratch + rows * d.ld;
    backward(layer, w_hh, s);
  }

  // u_t for t = 1 ... T; no gradient reaches h_0 directly.
  static ConstRows<T> direct(const RecurrentBackwardArgs& args, int64_t t, int64_t b) {
    if (!args.grad || t == 0) return {};
    const T* first = static_cast<const T*>(args.grad);
    return {first + (t - 1) * args.grad_stride[0] + b * args.grad_stride[1], args.grad_stride[1]};
  }

 private:
  // What the maths of step t of samples b and on reads.
  BackwardStep<T> of_step(int64_t t, int64_t b) const {
    BackwardStep<T> s{};
    s.kept = kept.from((t - 1 - lo) * batch() + b);
    s.h = layer.h(t, b);
    s.h_prev = layer.h(t - 1, b);
    if constexpr (Cell::kCarriesCell) s.c_prev = layer.c(t - 1, b);
    return s;
  }

  static StepBackward<Cell> choose_backward(int64_t H) {
    StepBackward<Cell> chosen = nullptr;
    with_width<T>(best_width<T>(H),
                  [&](auto width) { chosen = &Cell::template backward<decltype(width)::value>; });
    return chosen;
  }
};

}  // namespace bppsa::BPPSA_ISA
