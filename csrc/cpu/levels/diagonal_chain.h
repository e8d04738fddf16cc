// The diagonal chain: each step's transposed Jacobian is a diagonal, given as H numbers a sample.
//
//   g_T = u_T,  g_{t-1} = decay_t * g_t + u_{t-1},  element by element
//
// So the chain is B*H chains of one number each that share nothing, and a kernel is free to
// lay them out: a *sample* of this chain is a block of `elements` elements, or fewer, that are
// neighbours, and a *lane* the part of a block that lies in one vector register. Lanes are
// walked a few at a time with their g in registers, which hides the latency of a step; many that
// are neighbours in memory as they lie there, with what they will read fetched ahead: a processor
// by itself fetches little of what it reads in strides, or within a page.
//
// Time folds into the samples: `fold(chunk)` is the same memory seen as chains of `chunk` steps,
// one for each chunk and sample (scan/folded.h). With one element the chain is one of 1 x 1
// matrices.
//
// What becomes of an element does not depend on its neighbours: not its bits, and not whether
// a product was trusted.
#pragma once

#include "../../requests/scans.h"
#include "../../simd/halves.h"

namespace bppsa::BPPSA_ISA {

// W numbers in a register; one alone is a scalar, which compilers keep out of vectors' way.
template <typename Real, int W>
struct LaneOf {
  using type = Vec<Real, W>;
};
template <typename Real>
struct LaneOf<Real, 1> {
  using type = Real;
};
template <typename Real, int W>
using Numbers = typename LaneOf<Real, W>::type;

template <typename Real, int W, typename S>
BPPSA_INLINE Numbers<Real, W> load_as(const S* p) {
  if constexpr (W == 1) {
    return widen(*p);
  } else if constexpr (sizeof(S) >= 4) {
    return __builtin_convertvector((load<S, W>(p)), Vec<Real, W>);
  } else {
    return __builtin_convertvector(widen_all<W>(p), Vec<Real, W>);
  }
}

template <int W, typename S, typename Real = typename ComputeOf<S>::type>
BPPSA_INLINE void store_as(S* p, Numbers<Real, W> v) {
  if constexpr (W == 1)
    *p = narrow<S>(v);
  else if constexpr (sizeof(S) >= 4)
    store<S, W>(p, v);
  else
    narrow_all<W>(v, p);
}

template <typename S>
struct DiagonalChain {
  using T = typename ComputeOf<S>::type;
  static constexpr int kLanes = 4;
  static constexpr int64_t kSpanned = 2048, kLeastSpan = 8;
  static constexpr int64_t kStreamed = 256, kAhead = 2;  // elements, steps

  // Where element e of row r and fold k lies at step t: data[t step + k fold + r row + e element].
  template <typename U>
  struct Operand {
    U* data;
    int64_t step, fold, row, element;

    void fold_time(int64_t rest, int64_t chunk) { data += rest * step, fold = chunk * step; }
  };
  // Of a lane's first element, without its step; `g` in the samples' own numbers, state_width() a
  // sample.
  struct Lane {
    int64_t decay, grad, out, g;
  };

  Operand<const S> decay, grad;
  Operand<S> out;
  int64_t T_steps, folds = 1, rows, length, block, blocks;
  bool contiguous;

  // B rows of H elements, or one row of them all where their strides allow it.
  DiagonalChain(const DiagonalScanRequest& request, int64_t elements)
      : decay(operand<const S>(request.decay, request.decay_stride)),
        grad(operand<const S>(request.grad, request.grad_stride)),
        out{static_cast<S*>(request.out), request.out_step, 0, request.H, 1},
        T_steps(request.T) {
    const bool one_row = is_one_row(decay, request) && is_one_row(grad, request);
    rows = one_row ? 1 : request.B;
    length = one_row ? request.B * request.H : request.H;
    if (one_row && request.H == 1) decay.element = decay.row, grad.element = grad.row;
    contiguous = (decay.element == 1 && grad.element == 1) || length == 1;
    block = min(elements, length);
    blocks = ceil_div(length, block);
  }

  DiagonalChain fold(int64_t chunk) const {
    DiagonalChain folded = *this;
    folded.folds = T_steps / chunk;
    folded.T_steps = chunk;
    const int64_t rest = T_steps % chunk;
    folded.decay.fold_time(rest, chunk);
    folded.grad.fold_time(rest, chunk);
    folded.out.fold_time(rest, chunk);
    return folded;
  }

  int64_t steps() const { return T_steps; }
  int64_t batch() const { return folds * rows * blocks; }
  int64_t state_width() const { return block; }
  int64_t scratch(int64_t) const { return 0; }
  int64_t size(int64_t b) const { return min(block, length - b % blocks * block); }

  void last(int64_t b, int64_t n, T* g) const {
    for_each_block(b, n, [&](const Lane& lane, int64_t size) {
      const S* u = grad.data + T_steps * grad.step + lane.grad;
      for (int64_t e = 0; e < size; ++e) g[lane.g + e] = widen(u[e * grad.element]);
    });
  }

  void first(int64_t b, int64_t n, const T* g) const {
    for_each_block(b, n, [&](const Lane& lane, int64_t size) {
      for (int64_t e = 0; e < size; ++e) out.data[lane.out + e] = narrow<S>(g[lane.g + e]);
    });
  }

  // What Walker::walk does by single steps in other cells.
  template <bool Final>
  void walk(int64_t hi, int64_t lo, int64_t b, int64_t n, T* g) const {
    // Steps that some lanes take before the others' turn: few enough that what the others will
    // read of the same lines is still in the cache, enough that setting up the lanes is paid for.
    if (folds == 1 && contiguous && n * block >= kStreamed) return stream<Final>(hi, lo, b, n, g);
    const int64_t size = folds > 1 ? T_steps : max(kSpanned / (n * block), kLeastSpan);
    for (int64_t t = hi; t > lo; t -= size)
      for_each_lanes<T>(b, n, [&](auto width, auto count, const Lane* lanes) {
        walk_lanes<decltype(width)::value, decltype(count)::value, Final>(t, max(t - size, lo),
                                                                          lanes, g);
      });
  }

  // For each element of the samples the map of all steps: g_0 = product g_T + shift, and the
  // least magnitude that the product had on its way.
  void compose(int64_t b, int64_t n, double* product, double* shift, double* least) const {
    for_each_lanes<double>(b, n, [&](auto width, auto count, const Lane* lanes) {
      compose_lanes<decltype(width)::value, decltype(count)::value>(lanes, product, shift, least);
    });
  }

  // One element as a 1 x 1 matrix, where a block is one.
  void materialise(int64_t t, int64_t b, T* P) const {
    *P = widen(decay.data[(t - 1) * decay.step + block_at(b).decay]);
  }
  void compose(int64_t t, int64_t b, int64_t, const T* P, T* out, T*) const {
    materialise(t, b, out);
    *out *= *P;
  }
  void product(int64_t, const T* g, const T* P, const T* u, T* out) const {
    *out = u ? *g * *P + *u : *g * *P;
  }

 private:
  template <typename U>
  static Operand<U> operand(const void* data, const int64_t* stride) {
    return {static_cast<U*>(data), stride[0], 0, stride[1], stride[2]};
  }

  template <typename U>
  static bool is_one_row(const Operand<U>& operand, const DiagonalScanRequest& request) {
    return request.B == 1 || request.H == 1 || operand.row == request.H * operand.element;
  }

  Lane lane_at(int64_t k, int64_t r, int64_t e, int64_t g) const {
    const auto at = [&](const auto& o) { return k * o.fold + r * o.row + e * o.element; };
    return {at(decay), at(grad), at(out), g};
  }
  Lane block_at(int64_t b) const {
    return lane_at(b / blocks / rows, b / blocks % rows, b % blocks * block, 0);
  }

  // Calls body(first lane, size) for samples [b, b + n).
  template <class Body>
  BPPSA_INLINE void for_each_block(int64_t b, int64_t n, const Body& body) const {
    int64_t k = b / blocks / rows, r = b / blocks % rows, j = b % blocks;
    for (int64_t i = 0; i < n; ++i) {
      body(lane_at(k, r, j * block, i * block), min(block, length - j * block));
      if (++j == blocks) j = 0, ++r;
      if (r == rows) r = 0, ++k;
    }
  }

  // Calls body(Constant<W>, Constant<count>, lanes): all lanes of the widest vectors first, then
  // what they leave of each block in narrower ones.
  template <typename Real, class Body>
  BPPSA_INLINE void for_each_lanes(int64_t b, int64_t n, const Body& body) const {
    constexpr int kWide = kMaxWidth<Real>, kSse = kMinWidth<Real>;
    if (contiguous && block >= kSse) {
      lanes_of<kWide>(b, n, body);
      if (kSse != kWide) lanes_of<kSse, kWide>(b, n, body);
      if (length % kSse) lanes_of<1, kSse>(b, n, body);
    } else {
      lanes_of<1>(b, n, body);
    }
  }

  // Lanes of W numbers, of what is left of each block by those of kWider.
  template <int W, int kWider = 0, class Body>
  BPPSA_INLINE void lanes_of(int64_t b, int64_t n, const Body& body) const {
    Lane lanes[kLanes];
    int count = 0;
    for_each_block(b, n, [&](const Lane& lane, int64_t size) {
      int64_t e = 0;
      if constexpr (kWider > 0) e = size / kWider * kWider;
      for (; e + W <= size; e += W) {
        lanes[count++] = {lane.decay + e * decay.element, lane.grad + e * grad.element,
                          lane.out + e, lane.g + e};
        if (count == kLanes) body(Constant<W>{}, Constant<kLanes>{}, lanes), count = 0;
      }
    });
    if (count >= 2) body(Constant<W>{}, Constant<2>{}, lanes);
    if (count % 2) body(Constant<W>{}, Constant<1>{}, lanes + count - 1);
  }

  // All elements of a step, as they lie, before those of the next; their g in memory.
  template <bool Final>
  void stream(int64_t hi, int64_t lo, int64_t b, int64_t n, T* g) const {
    for (int64_t t = hi; t > lo; --t)
      for_each_block(b, n, [&](const Lane& lane, int64_t size) __attribute__((always_inline)) {
        const S* a = decay.data + (t - 1) * decay.step + lane.decay;
        const S* u = grad.data + (t - 1) * grad.step + lane.grad;
        S* o = out.data + t * out.step + lane.out;
        T* x = g + lane.g;
        const auto run = [&](auto width, int64_t e) __attribute__((always_inline)) {
          constexpr int W = decltype(width)::value;
          for (; e + W <= size; e += W) {
            if constexpr (W > 1) {
              __builtin_prefetch(a + e - kAhead * decay.step);
              __builtin_prefetch(u + e - kAhead * grad.step);
              if constexpr (Final) __builtin_prefetch(o + e - kAhead * out.step, 1);
            }
            const Numbers<T, W> now = load_as<T, W>(x + e);
            if constexpr (Final) store_as<W>(o + e, now);
            store_as<W>(x + e, load_as<T, W>(a + e) * now + load_as<T, W>(u + e));
          }
          return e;
        };
        run(Constant<1>{}, run(Constant<kMaxWidth<T>>{}, 0));
      });
  }

  template <int W, int R, bool Final>
  void walk_lanes(int64_t hi, int64_t lo, const Lane* lanes, T* g) const {
    Numbers<T, W> x[R];
    const S *a[R], *u[R];
    S* o[R];
    for (int i = 0; i < R; ++i) {
      x[i] = load_as<T, W>(g + lanes[i].g);
      a[i] = decay.data + (hi - 1) * decay.step + lanes[i].decay;
      u[i] = grad.data + (hi - 1) * grad.step + lanes[i].grad;
      o[i] = out.data + hi * out.step + lanes[i].out;
    }
    for (int64_t t = hi; t > lo; --t)
      for (int i = 0; i < R; ++i) {
        if constexpr (Final) store_as<W>(o[i], x[i]);
        x[i] = load_as<T, W>(a[i]) * x[i] + load_as<T, W>(u[i]);
        a[i] -= decay.step, u[i] -= grad.step, o[i] -= out.step;
      }
    for (int i = 0; i < R; ++i) store_as<W>(g + lanes[i].g, x[i]);
  }

  template <int W, int R>
  void compose_lanes(const Lane* lanes, double* product, double* shift, double* least) const {
    Numbers<double, W> p[R], s[R], low[R];
    const S *a[R], *u[R];
    for (int i = 0; i < R; ++i) {
      p[i] = low[i] = Numbers<double, W>{} + 1;
      s[i] = Numbers<double, W>{};
      a[i] = decay.data + (T_steps - 1) * decay.step + lanes[i].decay;
      u[i] = grad.data + (T_steps - 1) * grad.step + lanes[i].grad;
    }
    for (int64_t t = T_steps; t > 0; --t)
      for (int i = 0; i < R; ++i) {
        const Numbers<double, W> factor = load_as<double, W>(a[i]);
        p[i] *= factor;
        s[i] = factor * s[i] + load_as<double, W>(u[i]);
        const Numbers<double, W> size = p[i] < 0 ? -p[i] : p[i];
        low[i] = size < low[i] ? size : low[i];
        a[i] -= decay.step, u[i] -= grad.step;
      }
    for (int i = 0; i < R; ++i) {
      store_as<W>(product + lanes[i].g, p[i]);
      store_as<W>(shift + lanes[i].g, s[i]);
      store_as<W>(least + lanes[i].g, low[i]);
    }
  }
};

}  // namespace bppsa::BPPSA_ISA
