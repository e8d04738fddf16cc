// The input of recurrent/regularised.h where its operator is given W_ih: the sums of a slab of
// steps are made, and read, while they stay in the cache. Of what is normalised a backward has to
// know more: it is kept, or made again.
#pragma once

#include "../simd/products.h"
#include "layer_norm.h"
#include "regularised.h"

namespace bppsa::BPPSA_ISA {

template <class Cell, bool kNormalised, typename T>
struct RegularisedInput {
  using Saved = SavedRow<Cell, kNormalised>;

  const RegularisedLayer<Cell, kNormalised, T>& layer;
  const NormalisedSums<Cell, T> norm{layer.H};

  // A slab's rows: enough to be worth a product, few enough for the second-level cache.
  static constexpr int64_t kSlabRows = 256;

  // Its steps of n samples.
  int64_t slab(int64_t n) const { return max(int64_t(1), min(kSlabRows / n, layer.steps)); }

  bool normalised() const { return kNormalised && layer.norm_ih; }
  bool keeps() const { return kNormalised && layer.request.keeps_input(); }
  bool makes_again() const { return normalised() && !keeps(); }

  // W_ih, as sums read it, and as the input's gradient does.
  LongMatrix<T> for_sums(bool needed) const {
    return LongMatrix<T>::transposed(layer.I, layer.GH, layer.w_ih, needed && layer.w_ih);
  }
  LongMatrix<T> for_gradient(bool needed) const {
    return LongMatrix<T>::as_it_lies(layer.GH, layer.I, layer.w_ih, needed && layer.w_ih);
  }
  int64_t bytes() const {
    return layer.w_ih ? max(LongMatrix<T>::bytes(layer.I, layer.GH),
                            LongMatrix<T>::bytes(layer.GH, layer.I))
                      : 0;
  }

  // Steps lo ... hi - 1 of samples b ... b + n - 1; rows of a slab begin at its first.
  struct Slab {
    int64_t lo, hi, b, n;

    int64_t steps() const { return hi - lo; }
    int64_t rows() const { return steps() * n; }
    StepRows<const T> of(const StepRows<const T>& all) const {
      return {all.at(lo, b).data, all.step, all.sample};
    }
  };

  // The sums of a slab: n rows a step, side by side.
  void forward(const LongMatrix<T>& w_ih, const Slab& slab, T* to) const {
    multiply(w_ih, slab, slab.of(layer.x), {normalised() ? nullptr : layer.b_ih, 0},
             {to, slab.n * layer.GH, layer.GH});
  }

  // Some rows of them, normalised in their place; `saved`: these rows of what is saved, or null.
  void normalise(int64_t rows, Rows<T> sums, T* saved) const {
    if constexpr (kNormalised) {
      T unread[2];
      const bool keeps = saved && this->keeps();
      norm.forward(rows, {sums.data, sums.ld}, keeps ? kept(saved) : Rows<T>{},
                   keeps ? scales_kept(saved) : Rows<T>{unread, 0}, layer.norm_ih, layer.b_ih,
                   sums);
    }
  }

  // What a slab adds to the gradients of W_ih, transposed, or null; of b_ih and of norm_ih.
  struct Sums {
    T *w, *b, *norm;
  };

  // The gradients of some rows of the sums from those of what was normalised of them, and kept.
  void go_back(int64_t rows, Rows<T> d, const T* saved, const Sums& to) const {
    norm.backward(rows, d, kept(saved), scales_kept(saved), layer.norm_ih, to.norm, to.b);
  }

  // From d, rows of N numbers side by side, the gradient of the sums, or of what was normalised of
  // them and is made again; x's, if `grad_x` is anything. `again`: room for the sums.
  void backward(const LongMatrix<T>& w_sums, const LongMatrix<T>& w_gradient, const Slab& slab,
                Rows<T> d, const Sums& to, T* again, StepRows<T> grad_x) const {
    const int64_t steps = slab.steps(), n = slab.n, N = d.ld, GH = layer.GH;
    const StepRows<const T> x = slab.of(layer.x), all{d.data, n * N, N};
    if (makes_again()) {
      T scales[kSlabRows * 2];
      multiply(w_sums, slab, x, {}, {again, n * GH, GH});
      norm.forward(slab.rows(), {again, GH}, {again, GH}, {scales, 2}, nullptr, nullptr, {});
      norm.backward(slab.rows(), d, {again, GH}, {scales, 2}, layer.norm_ih, to.norm, to.b);
    } else if (!normalised()) {
      const T one = 1;
      add_transposed_product<T>(steps, n, 1, N, {&one, 0, 0}, all, to.b);
    }
    if (to.w) add_transposed_product<T>(steps, n, layer.I, N, x, all, to.w);
    if (grad_x.data)
      multiply(w_gradient, slab, all, {},
               {grad_x.at(slab.lo, slab.b).data, grad_x.step, grad_x.sample});
  }

 private:
  // What was normalised, and its scales, of rows that are saved.
  template <typename U>
  Rows<U> kept(U* saved) const {
    return {saved + Saved::input(layer.H, layer.blends), layer.width};
  }
  template <typename U>
  Rows<U> scales_kept(U* saved) const {
    return {saved + Saved::kRows * layer.H + Saved::kMomentsOfInput, layer.width};
  }

  // Of as many rows a product as can be: the matrix is read for each.
  static void multiply(const LongMatrix<T>& matrix, const Slab& slab, StepRows<const T> from,
                       ConstRows<T> addend, StepRows<T> to) {
    const int64_t steps = slab.steps(), n = slab.n;
    if (from.step == n * from.sample && to.step == n * to.sample)
      matrix.multiply(steps * n, {from.data, from.sample}, addend, {to.data, to.sample});
    else if (n < steps)
      for (int64_t r = 0; r < n; ++r)
        matrix.multiply(steps, {from.at(0, r).data, from.step}, addend,
                        {to.at(0, r).data, to.step});
    else
      for (int64_t t = 0; t < steps; ++t)
        matrix.multiply(n, {from.at(t, 0).data, from.sample}, addend,
                        {to.at(t, 0).data, to.sample});
  }
};

}  // namespace bppsa::BPPSA_ISA
