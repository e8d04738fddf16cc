// A recurrent layer as a chain: what the scan algorithms ask of a chain (scan/walk.h), for steps
// (lo, hi] and samples [b, b + n) of the layer.
//
// The state is h, for an LSTM h and c, each padded. The gradient that enters at hi and leaves at lo
// is the caller's `carry`; the gradients of the pre-activations go to `d`, rows of (step, sample).
#pragma once

#include "../simd/products.h"
#include "step.h"

namespace bppsa::BPPSA_ISA {

// Which steps and samples of a layer, and the gradients of their pre-activations: rows (step,
// sample), sample by sample.
template <typename T>
struct SlabGradients {
  int64_t lo, hi;  // steps (lo, hi]
  int64_t b, n;    // samples [b, b + n)
  StepRows<T> d;   // from step lo + 1 and sample b on

  int64_t steps() const { return hi - lo; }
};

// And what the forward kept of them.
template <typename T>
struct Slab : SlabGradients<T> {
  StepRows<const T> kept;
  bool read_by_other_core = false;  // d
};

// (Of a part of a layer it is no chain, but its steps are.)
template <class Cell_, bool kPart = false>
struct LayerChain {
  using Cell = Cell_;
  using T = typename Cell::T;

  const Layer<T>& layer;
  const RecurrentBackwardRequest& request;
  const BackwardWeights<T>& weights;
  const Slab<T> slab;
  T* const carry;  // n x state
  const SquareProduct<T> product{state(layer)};
  // Whether what was kept of a step is worth asking for (as measured: of an LSTM from 64 units on).
  const bool long_rows = slab.kept.sample * sizeof(T) >= 1024;

  static int64_t state(const Layer<T>& layer) {
    return layer.padded_P + (Cell::kStates == 2 ? layer.padded : 0);
  }

  int64_t steps() const { return slab.steps(); }
  int64_t batch() const { return slab.n; }
  int64_t state_width() const { return state(layer); }
  int64_t scratch(int64_t n) const { return n * (slab.d.sample + layer.padded); }

  void last(int64_t b, int64_t n, T* g) const {
    std::memcpy(g, carry + b * state_width(), n * state_width() * sizeof(T));
  }
  void first(int64_t b, int64_t n, const T* g) const {
    std::memcpy(carry + b * state_width(), g, n * state_width() * sizeof(T));
  }

  template <bool Final>
  BPPSA_INLINE void step(int64_t t, int64_t b, int64_t n, const T* g, T* out, T* scratch) const {
    BackwardStep<T> s = walked(t, b, n, g, out, scratch);
    if (Final) s.d = slab.d.at(t - 1, b);
    if (Final && slab.read_by_other_core && t > kAhead)
      prefetch_to_write(s.d.data - kAhead * slab.d.step, n * slab.d.sample);
    if (Final && n > 1 && long_rows && slab.lo + t > kKeptAhead)
      prefetch_to_read(s.kept.data - kKeptAhead * slab.kept.step, n * slab.kept.sample);
    if (Final && __builtin_constant_p(n == 1) && n == 1)
      backward_step<Cell>(layer, weights, s);
    else
      backward(s);
  }

  // Step t of a walk: the gradients that enter are the chain's.
  BPPSA_INLINE BackwardStep<T> walked(int64_t t, int64_t b, int64_t n, const T* g, T* out,
                                      T* scratch) const {
    BackwardStep<T> s = of_step(t, b, n, g, out, scratch);
    s.direct = direct(request, slab.lo + t - 1, slab.b + b).from_column(first_unit());
    return s;
  }

  void materialise(int64_t t, int64_t b, T* P) const {
    const int64_t S = state_width();
    Buffer<T> memory(S * S + scratch(S));
    std::memset(memory.data, 0, S * S * sizeof(T));
    for (int64_t i = 0; i < S; ++i) memory.data[i * (S + 1)] = 1;
    compose(t, b, S, memory.data, P, memory.data + S * S);
  }

  void compose(int64_t t, int64_t b, int64_t rows, const T* P, T* out, T* scratch) const {
    BackwardStep<T> s = of_step(t, b, rows, P, out, scratch);
    s.kept.ld = s.h.ld = s.h_prev.ld = s.c_prev.ld = 0;
    backward(s);
  }

  // u_t for t = 1 ... T; no gradient reaches h_0 directly.
  static ConstRows<T> direct(const RecurrentBackwardRequest& request, int64_t t, int64_t b) {
    if (!request.grad || t == 0) return {};
    const T* first = static_cast<const T*>(request.grad);
    return {first + (t - 1) * request.grad_stride[0] + b * request.grad_stride[1],
            request.grad_stride[1]};
  }

  // dL/d(state t) of samples [b, b + n) that end with step t, as rows of the chain's state.
  static void enter(const RecurrentBackwardRequest& request, const Layer<T>& layer, int64_t t,
                    int64_t b, int64_t n, T* g) {
    const ConstRows<T> u = direct(request, t, b);
    const ConstRows<T> last_h{static_cast<const T*>(request.grad_hn), layer.P};
    const ConstRows<T> last_c{static_cast<const T*>(request.grad_cn), layer.all};
    for (int64_t r = 0; r < n; ++r, g += state(layer)) {
      copy_padded(layer.shown, u.at(r, layer.first), g);
      const T* of_h = last_h.at(b + r, layer.first);
      for (int64_t p = 0; of_h && p < layer.shown; ++p) g[p] += of_h[p];
      if (Cell::kStates == 2)
        copy_padded(layer.H, last_c.at(b + r, layer.first), g + layer.padded_P);
    }
  }

  // dL/d(state 0) to the results of the layer.
  static void leave(const RecurrentBackwardRequest& request, const Layer<T>& layer, int64_t b,
                    int64_t n, const T* g) {
    const Rows<T> h0{static_cast<T*>(request.grad_h0), layer.P};
    const Rows<T> c0{static_cast<T*>(request.grad_c0), layer.all};
    for (int64_t r = 0; r < n; ++r, g += state(layer)) {
      if (h0) std::memcpy(h0.at(b + r, layer.first), g, layer.shown * sizeof(T));
      if (c0) std::memcpy(c0.at(b + r, layer.first), g + layer.padded_P, layer.H * sizeof(T));
    }
  }

 private:
  static constexpr int64_t kAhead = 8, kKeptAhead = 2;  // steps

  int64_t first_unit() const { return kPart ? layer.first : 0; }

  __attribute__((noinline)) void backward(const BackwardStep<T>& s) const {
    backward_step<Cell>(layer, weights, s);
  }

  // For n rows of gradients; what it reads of the layer: of samples slab.b + b and on.
  BPPSA_INLINE BackwardStep<T> of_step(int64_t t, int64_t b, int64_t n, const T* g, T* out,
                                       T* scratch) const {
    const int64_t step = slab.lo + t, sample = slab.b + b;
    BackwardStep<T> s{};
    s.n = n;
    s.g = {g, state_width()};
    s.kept = slab.kept.at(t - 1, b).from_column(Cell::kSlots * first_unit());
    s.h = layer.h(step, sample).from_column(first_unit());
    s.h_prev = layer.h(step - 1, sample).from_column(first_unit());
    if constexpr (Cell::kStates == 2) {
      s.c_prev = layer.c(step - 1, sample).from_column(first_unit());
      s.c_width = layer.c_width(step - 1);
    }
    s.d = {scratch, slab.d.sample};
    s.out = {out, state_width()};
    s.scratch = scratch + n * slab.d.sample;
    return s;
  }
};

// Whether no direct gradient enters at the states before the steps of a slab.
template <class Cell, typename T = typename Cell::T>
bool is_silent(const RecurrentBackwardRequest& request, const SlabGradients<T>& slab) {
  for (int64_t t = slab.hi - 1; t >= slab.lo; --t) {
    const ConstRows<T> u = LayerChain<Cell>::direct(request, t, slab.b);
    if (!u) continue;
    const bool joined = u.ld == request.P;
    for (int64_t r = 0; r < (joined ? 1 : slab.n); ++r)
      if (!all_zero(u[r], joined ? slab.n * request.P : request.P)) return false;
  }
  return true;
}

}  // namespace bppsa::BPPSA_ISA
