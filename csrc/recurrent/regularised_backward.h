// The backward of recurrent/regularised.h: a walk over the transposed Jacobians, and behind every
// slab of steps the products that give the weights' gradients.
#pragma once

#include "../simd/parallel.h"
#include "../simd/worker_sums.h"
#include "regularised_input.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, bool kNormalised, typename T>
struct RegularisedBackward {
  using Layer = RegularisedLayer<Cell, kNormalised, T>;
  using Saved = typename Layer::Saved;
  using V = Vec<T, kMaxWidth<T>>;
  using Math = VectorMath<T, kMaxWidth<T>>;
  static constexpr bool kHasC = Cell::kStates == 2;
  using Input = RegularisedInput<Cell, kNormalised, T>;

  const RegularisedBackwardRequest& request;
  const Parallel& parallel;
  const Layer layer{request};
  const Input input{layer};
  const int64_t H = layer.H, GH = layer.GH, N = whole_vectors<T>(GH);
  const int64_t width = layer.width;
  const T* const saved = Layer::typed(request.saved);
  const StepRows<const T> output{Layer::typed(request.output), request.step, H};
  const StepRows<const T> grad{Layer::typed(request.grad), request.grad_stride[0],
                               request.grad_stride[1]};
  // Of the input, or of its sums.
  const StepRows<T> grad_x{static_cast<T*>(request.grad_x), request.grad_x_step,
                           layer.w_ih ? layer.I : GH};
  // Whether the sums of the input and of the state have one gradient.
  const bool same = !kNormalised && Cell::kFirstRecurrentRow == 0;
  static_assert(Cell::kFirstRecurrentRow || Cell::input_gate(0) == 0);

  // A worker's sums: of W_hh, transposed (or of w_hh), and of what is added up row by row.
  struct Sums {
    T *w, *b_hh, *norm_hh, *norm_c, *b_c;
    typename Input::Sums input;
  };
  const int64_t of_input = layer.w_ih ? layer.I * N + 2 * N : 0;
  const int64_t sums_size = H * N + 2 * N + 2 * whole_vectors<T>(H) + of_input;
  const SampleGroups groups{layer.B, parallel.threads};
  const int64_t workers = max(int64_t(1), min(int64_t(parallel.threads), groups.count));
  const WorkerSums<T> all{int(workers), sums_size};
  const Buffer<T> sums_memory{workers * sums_size};

  Sums sums(int64_t worker) const {
    T* const w = sums_memory.data + worker * sums_size;
    T *const b = w + H * N, *const c = b + 2 * N, *const b_c = c + whole_vectors<T>(H);
    T *const x = b_c + whole_vectors<T>(H), *const b_ih = x + layer.I * N;
    return {w, b, b + N, c, b_c, {request.grad_w_ih ? x : nullptr, b_ih, b_ih + N}};
  }

  // W_hh as gradients are multiplied by it; W_ih as they are, and as sums are made again.
  struct Weights {
    LongMatrix<T> hh, ih, for_sums;
  };
  Weights weights(bool needed) const {
    return {LongMatrix<T>::as_it_lies(GH, H, layer.w_hh, needed && !layer.diagonal()),
            input.for_gradient(needed && request.grad_x),
            input.for_sums(needed && input.makes_again())};
  }

  void run() const {
    for_each_index_reading(
        parallel, workers, LongMatrix<T>::bytes(GH, H) + 2 * input.bytes(),
        [&](bool needed) { return weights(needed); },
        [&](int64_t worker, const Weights& weights) {
          std::memset(sums_memory.data + worker * sums_size, 0, sums_size * sizeof(T));
          const int64_t end = groups.count * (worker + 1) / workers;
          for (int64_t i = groups.count * worker / workers; i < end; ++i)
            group(groups.begin(i), groups.size(i), weights, sums(worker));
        });
    finish();
  }

 private:
  // One step of one sample.
  struct Sample {
    const T* row;                  // Saved
    const T *h_before, *c_before;  // null for zeros
    const uint8_t* kept[2];
    T *g_h, *g_c;       // of the state after the step; then of c before it
    T* past;            // result: of h before it, past the weights
    T *to_x, *to_sums;  // results; null where to_sums has both
    const T* later;     // a saved row to ask for, or null
  };

  void group(int64_t b, int64_t n, const Weights& weights, const Sums& to) const {
    const int64_t slab = input.slab(n);
    const bool apart = layer.w_ih && !same;
    const int64_t some = input.norm.at_a_time();
    const int64_t of_input = (apart ? N : 0) + (input.makes_again() ? GH : 0);
    const int64_t scratch_size = kHasC && kNormalised ? kRowsTogether * 2 * H : 0;
    const Buffer<T> memory(n * 3 * H + scratch_size + slab * n * (N + H + of_input));
    const Rows<T> g_h{memory.data, H}, g_c{g_h[n], H}, past{g_c[n], H};
    T* const scratch = past[n];
    const StepRows<T> d{scratch + scratch_size, n * N, N};  // of the state's sums
    const StepRows<T> e{d.data + slab * n * N, n * H, H};   // what entered the weights
    const StepRows<T> d_x = apart ? StepRows<T>{e.data + slab * n * H, n * N, N} : d;
    T* const again = d_x.data + slab * n * N;  // the input's sums
    if (N > GH) std::memset(d.data, 0, slab * n * N * sizeof(T));
    if (N > GH && apart) std::memset(d_x.data, 0, slab * n * N * sizeof(T));
    const ConstRows<T> last_h{Layer::typed(request.grad_hn), H};
    const ConstRows<T> last_c{Layer::typed(request.grad_cn), H};
    for (int64_t r = 0; r < n; ++r) {
      copy(last_h.at(b + r, 0), g_h[r]);
      copy(last_c.at(b + r, 0), g_c[r]);
    }
    for (int64_t hi = layer.steps; hi > 0; hi -= min(slab, hi)) {
      const int64_t lo = max(int64_t(0), hi - slab);
      for (int64_t t = hi - 1; t >= lo; --t) {
        const Rows<T> to_sums = d.at(t - lo, 0);
        const Rows<T> to_x = layer.w_ih ? d_x.at(t - lo, 0) : grad_x.at(t, b);
        // A few samples at a time, whose rows stay in the first-level cache.
        for (int64_t first = 0; first < n; first += some) {
          const int64_t end = min(first + some, n);
          const T* const rows = saved + (t * layer.B + b + first) * width;
          Sample now[kRowsTogether];
          for (int64_t r = first; r < end; ++r) {
            const T* row = rows + (r - first) * width;
            const T* h_before = t ? output.at(t - 1, b)[r] : layer.h0.at(b + r, 0);
            const T* c_before =
                t ? row - layer.B * width + Saved::c_after(H, layer.blends) : layer.c0.at(b + r, 0);
            now[r - first] = {
                row,        h_before,
                c_before,   {layer.kept(0, t, b + r), layer.kept(kHasC, t, b + r)},
                g_h[r],     g_c[r],
                past[r],    layer.w_ih && !apart ? nullptr : to_x[r],
                to_sums[r], layer.template later_row<-1>(saved, t, b, n, r, n + some)};
            if (grad.data) add(H, grad.at(t, b)[r], g_h[r]);
            if (t > 2) {  // what lies in strides is asked for two steps ahead
              if (grad.data) prefetch_to_read(grad.at(t - 2, b)[r], H);
              prefetch_to_read(output.at(t - 3, b)[r], H);
            }
            enter(h_before, b + r, e.at(t - lo, 0)[r]);
          }
          steps(end - first, now, scratch, to);
          if constexpr (kNormalised)
            input.norm.backward(end - first, to_sums.from(first), {rows + Saved::kSums * H, width},
                                {rows + Saved::kRows * H, width}, layer.norm_hh, to.norm_hh,
                                to.b_hh);
          if (input.keeps()) input.go_back(end - first, to_x.from(first), rows, to.input);
        }
        if (layer.diagonal()) {
          hand_to_themselves(b, n, to_sums, past, g_h);
        } else if (layer.enters) {
          weights.hh.multiply(n, {to_sums.data, N}, {}, g_h);
          leave(b, n, past, g_h);
        } else {
          weights.hh.multiply(n, {to_sums.data, N}, {past.data, H}, g_h);
        }
      }
      if (layer.diagonal())
        for (int64_t row = 0; row < (hi - lo) * n; ++row)
          add_products(e.data + row * H, d.data + row * N, to.w);
      else if (request.grad_w_hh)
        add_transposed_product<T>(hi - lo, n, H, N, {e.data, e.step, e.sample},
                                  {d.data, d.step, d.sample}, to.w);
      if (layer.w_ih)
        input.backward(weights.for_sums, weights.ih, {lo, hi, b, n}, d_x.at(0, 0), to.input, again,
                       grad_x);
    }
    if (request.grad_h0)
      std::memcpy(static_cast<T*>(request.grad_h0) + b * H, g_h.data, n * H * sizeof(T));
    if (request.grad_c0)
      std::memcpy(static_cast<T*>(request.grad_c0) + b * H, g_c.data, n * H * sizeof(T));
  }

  // g_h = w_hh m d + past, unit by unit.
  void hand_to_themselves(int64_t b, int64_t n, Rows<T> d, Rows<T> past, Rows<T> g_h) const {
    for (int64_t r = 0; r < n; ++r)
      for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
        V g = units.load(layer.w_hh + k) * units.load(d[r] + k);
        if (layer.enters) g *= units.load(layer.enters[b + r] + k);
        units.store(g_h[r] + k, g + units.load(past[r] + k));
      });
  }

  // g_h = m g_h + past.
  void leave(int64_t b, int64_t n, Rows<T> past, Rows<T> g_h) const {
    for (int64_t r = 0; r < n; ++r)
      for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
        const V m = units.load(layer.enters[b + r] + k);
        units.store(g_h[r] + k, units.load(g_h[r] + k) * m + units.load(past[r] + k));
      });
  }

  void copy(const T* from, T* to) const {
    from ? std::memcpy(to, from, H * sizeof(T)) : std::memset(to, 0, H * sizeof(T));
  }

  void enter(const T* h, int64_t sample, T* to) const {
    if (!h || !layer.enters) return copy(h, to);
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      units.store(to + k, units.load(h + k) * units.load(layer.enters[sample] + k));
    });
  }

  // Of a state's gradient: what the new state has of it; the old one has the rest.
  template <class Units>
  BPPSA_INLINE V of_new(Units units, const uint8_t* kept, int64_t k, V g) const {
    if (!layer.blends) return g;
    const V now = layer.share != 0 ? g - layer.share * g : g;
    return kept ? select<T, kMaxWidth<T>>(units.mask(kept + k), V{}, now) : now;
  }
  template <class Units>
  BPPSA_INLINE V of_old(Units units, const uint8_t* kept, int64_t k, V g) const {
    if (!layer.blends) return V{};
    const V old = layer.share != 0 ? layer.share * g : V{};
    return kept ? select<T, kMaxWidth<T>>(units.mask(kept + k), g, old) : old;
  }

  // Of some samples whose saved rows lie one after another.
  void steps(int64_t samples, const Sample* s, T* scratch, const Sums& to) const {
    if constexpr (kHasC && kNormalised) {
      for_some_rows(samples, true, [&](auto some, int64_t first) __attribute__((always_inline)) {
        const auto back = hide<some.value>(s + first, scratch, to);
        for (int r = 0; r < some.value; ++r)
          step(s[first + r], to, [&](auto units, int64_t k) __attribute__((always_inline)) {
            const T* const of_normal = scratch + r * 2 * H + k;
            return back.of(r, units.load(of_normal), units.load(of_normal + H));
          });
      });
    } else {
      for (int64_t r = 0; r < samples; ++r) step(s[r], to, [](auto, int64_t) { return V{}; });
    }
  }

  // `of_c`: what c has of its normalised self's gradient.
  template <class OfC>
  void step(const Sample& s, const Sums& to, const OfC& of_c) const {
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      V slot[Cell::kSlots] = {}, g[Cell::kStates], past[Cell::kStates] = {}, d[Cell::kRows];
      V output{}, before{};
      if (s.later)
        for (int64_t i = k; i < width; i += H) __builtin_prefetch(s.later + i);
      if constexpr (Cell::kKept) {
        for (int i = 0; i < Cell::kSlots; ++i) slot[i] = units.load(s.row + i * H + k);
        const T* from = kHasC ? s.c_before : s.h_before;
        if (from) before = units.load(from + k);
      } else {
        output = units.load(s.row + k);
      }
      const V all_h = units.load(s.g_h + k);
      g[0] = of_new(units, s.kept[0], k, all_h);
      const V old_h = of_old(units, s.kept[0], k, all_h);
      if constexpr (kHasC) {
        const V all_c = units.load(s.g_c + k);
        g[1] = of_new(units, s.kept[1], k, all_c);
        if constexpr (kNormalised) {
          g[0] = V{};  // o's own gradient comes from `hide`
          g[1] += of_c(units, k);
        } else {
          output = Math::tanh(units.load(s.row + Saved::kC * H + k));
        }
        Cell::template pull<Math>(factors(units, k, slot, output, before), g, d, past);
        units.store(s.g_c + k, past[1] + of_old(units, s.kept[1], k, all_c));
        if constexpr (kSeesC<Cell>) {
          const V after = units.load(s.row + Saved::kC * H + k);
          for (int gate = 0; gate < Cell::kGates; ++gate) {
            T* const sum = to.b_hh + gate * H + k;
            const V seen = gate == Cell::kGates - 1 ? after : before;
            units.store(sum, units.load(sum) + d[gate] * seen);
          }
        }
      } else {
        Cell::template pull<Math>(Cell::template factors<Math>(slot, output, before), g, d, past);
      }
      if constexpr (kHasC && kNormalised)
        d[Cell::kRows - 1] = units.load(s.to_sums + (Cell::kGates - 1) * H + k);
      units.store(s.past + k, Cell::kPassesH ? past[0] + old_h : old_h);
      for (int row = 0; row < Cell::kGates; ++row) {
        if (s.to_x) units.store(s.to_x + Cell::input_gate(row) * H + k, d[row]);
        units.store(s.to_sums + row * H + k, d[Cell::kFirstRecurrentRow + row]);
      }
    });
    if constexpr (!kNormalised && !kSeesC<Cell>) add(GH, s.to_sums, to.b_hh);
  }

  template <class Units>
  BPPSA_INLINE auto factors(Units units, int64_t k, const V (&slot)[Cell::kSlots], V output,
                            V before) const {
    if constexpr (kSeesC<Cell>) {
      V p[Cell::kGates];
      layer.peepholes(units, k, p);
      return Cell::template factors<Math>(slot, output, before, p);
    } else {
      return Cell::template factors<Math>(slot, output, before);
    }
  }

  void add(int64_t n, const T* row, T* sum) const {
    for_each_unit<T>(n, [&](auto units, int64_t k) __attribute__((always_inline)) {
      units.store(sum + k, units.load(sum + k) + units.load(row + k));
    });
  }

  void add_products(const T* a, const T* b, T* sum) const {
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      units.store(sum + k, units.load(sum + k) + units.load(a + k) * units.load(b + k));
    });
  }

  // Through h = o tanh(norm_c LN(c) + b_c): the gradient of o's sum, to o's place; in `scratch`, of
  // each sample, the gradient of LN(c), and LN(c).
  template <int R>
  BPPSA_INLINE Centred<T, R> hide(const Sample* s, T* scratch, const Sums& to) const {
    Centred<T, R> back;
    RowSums<T, R> means, moments;
    T mean[R];
    for (int r = 0; r < R; ++r) {
      const T* const of_c = s[r].row + Saved::kRows * H + Saved::kMomentsOfC;
      mean[r] = of_c[0], back.scale[r] = of_c[1];
    }
    for_each_unit<T>(H, [&](auto units, int64_t k) __attribute__((always_inline)) {
      const V gain = units.load(layer.norm_c + k);
      const V shift = layer.b_c ? units.load(layer.b_c + k) : V{};
      V to_gain = units.load(to.norm_c + k), to_shift = units.load(to.b_c + k);
      for (int r = 0; r < R; ++r) {
        const T* const row = s[r].row + k;
        const V c = units.load(row + Saved::kC * H), o = units.load(row + (Cell::kSlots - 1) * H);
        const V normal = units.only((c - mean[r]) * back.scale[r]);
        const V shown = Math::tanh(gain * normal + shift);
        const V g = of_new(units, s[r].kept[0], k, units.load(s[r].g_h + k));
        units.store(s[r].to_sums + (Cell::kGates - 1) * H + k, g * shown * (o * (1 - o)));
        const V of_z = g * o * (1 - shown * shown), of_normal = of_z * gain;
        to_gain += of_z * normal;
        to_shift += of_z;
        units.store(scratch + r * 2 * H + k, of_normal);
        units.store(scratch + r * 2 * H + H + k, normal);
        means.of[r] += units.only(of_normal);
        moments.of[r] += units.only(of_normal * normal);
      }
      units.store(to.norm_c + k, to_gain);
      units.store(to.b_c + k, to_shift);
    });
    means.means(H, back.mean);
    moments.means(H, back.moment);
    return back;
  }

  void finish() const {
    const Sums first = sums(0);
    const auto write = [&](void* to, const T* from, int64_t n) {
      if (to) all.write(from, n, static_cast<T*>(to));
    };
    if (layer.diagonal())
      write(request.grad_w_hh, first.w, H);
    else if (T* const to = static_cast<T*>(request.grad_w_hh))
      all.write_transposed(parallel, first.w, N, H, GH, to);
    write(request.grad_b_hh, first.b_hh, GH);
    write(request.grad_norm_hh, first.norm_hh, GH);
    write(request.grad_norm_c, first.norm_c, H);
    write(request.grad_b_c, first.b_c, H);
    if (!layer.w_ih) return;
    write(request.grad_b_ih, first.input.b, GH);
    write(request.grad_norm_ih, first.input.norm, GH);
    if (T* const to = static_cast<T*>(request.grad_w_ih))
      all.write_transposed(parallel, first.input.w, N, layer.I, GH, to);
  }
};

template <class Cell, bool kNormalised, typename T>
void regularised_backward_of(const RegularisedBackwardRequest& request, const Parallel& parallel) {
  RegularisedBackward<Cell, kNormalised, T>{request, parallel}.run();
}

}  // namespace bppsa::BPPSA_ISA
