// From the gradients of the pre-activations to those of the parameters and the inputs.
//
// Every one is a product over (step, sample): grad W = sum of d^T [input]. Each worker takes a
// share of the rows and adds to sums of its own, kept transposed (input by gate) so that vectors
// lie along the gates; they are added up in the order of the workers when all is done, and turned.
//
// Compiled once a level (cpu/levels/recurrent_weights.cpp): of a cell they need no more than what
// its rows of d go with.
#pragma once

#include "../simd/parallel.h"
#include "../simd/worker_sums.h"
#include "chain.h"

namespace bppsa::BPPSA_ISA {

// What a cell says of its rows of d (cells/cell.h).
struct RowsOfD {
  int gates, rows, first_recurrent;
  bool sees_c;
  int input_gate[4];  // of the first `gates`

  // Numbers in a row, so that each range of it can be read in whole vectors.
  template <typename T>
  int64_t width(const Layer<T>& layer) const {
    const int64_t padded = layer.padded;
    const int64_t of_gates = first_recurrent * padded + whole_vectors<T>(gates * padded);
    return layer.w_hr ? max(of_gates, rows * padded + layer.padded_P + whole_vectors<T>(padded))
                      : of_gates;
  }

  // Whether the gradient of b_hh is not that of b_ih.
  bool own_recurrent_bias() const { return first_recurrent || sees_c; }
  // Whether the rows are in another order than torch's gates.
  bool permuted() const { return input_gate[0] != 0; }
};
template <class Cell>
constexpr RowsOfD kRowsOfD = [] {
  RowsOfD rows{Cell::kGates, Cell::kRows, Cell::kFirstRecurrentRow, kSeesC<Cell>, {}};
  for (int row = 0; row < Cell::kGates; ++row) rows.input_gate[row] = Cell::input_gate(row);
  return rows;
}();

template <typename T>
class ParameterGradients {
 public:
  ParameterGradients(const RowsOfD& row, const Layer<T>& layer,
                     const RecurrentBackwardRequest& request, const Parallel& parallel);

  // Adds the rows of a slab to the sums of one worker.
  void add(int64_t worker, const SlabGradients<T>& slab) const;

  // Adds the rows of a slab, shared out to `count` workers from `first` on: share i of them. (What
  // the forward kept of the slab is another's by now, see LayerBackward::in_a_pipeline.)
  void add_share(int64_t first, int64_t i, int64_t count, SlabGradients<T> slab) const;

  // What the rows of a slab would add if they were zeros.
  void add_nothing(const SlabGradients<T>& slab) const;

  // Writes the gradients.
  void finish();

 private:
  bool narrow() const { return layer_.I < 4; }
  bool rearranged() const { return row_.permuted() || narrow() || layer_.H != layer_.padded; }

  // A worker's: of the weights, of the biases that go with W_ih and of those that go with W_hh.
  struct Sums {
    T *x, *h, *hr, *bias_x, *bias_h;
  };
  Sums sums(int64_t worker) const {
    T* const x = sums_.data + worker * size_;
    T* const h = x + size_x_;
    T* const hr = h + size_h_;
    T* const bias = hr + size_hr_;
    return {x, h, hr, bias, bias + N_};
  }

  void add_peepholes(const SlabGradients<T>& slab, T* sums) const;
  T* grad_x_row(int64_t t, int64_t b) const {
    return static_cast<T*>(request_.grad_x) + t * request_.grad_x_stride[0] +
           b * request_.grad_x_stride[1];
  }
  void grad_x(const SlabGradients<T>& slab) const;
  void grad_x(int64_t n, Rows<T> d, Rows<T> out) const;  // of n rows of d
  void arrange_w_ih();
  void collect(const T* sum, int64_t inputs, void* grad, bool permuted) const;

  const RowsOfD row_;
  const Layer<T>& layer_;
  const RecurrentBackwardRequest& request_;
  const int workers_;
  const Parallel& given_;
  const int64_t K_ = row_.gates * layer_.padded, N_ = whole_vectors<T>(K_);
  const int64_t size_x_ = request_.grad_w_ih ? layer_.I * N_ : 0;
  const int64_t size_h_ = request_.grad_w_hh ? layer_.P * N_ : 0;
  const int64_t size_hr_ = request_.grad_w_hr ? layer_.P * whole_vectors<T>(layer_.padded) : 0;
  const int64_t size_ = size_x_ + size_h_ + size_hr_ + 2 * N_;
  const WorkerSums<T> all_{workers_, size_};
  Buffer<T> sums_{workers_ * size_};
  const Parallel parallel_ = worth_threads(given_, workers_* size_);
  Buffer<T> w_ih_{request_.grad_x && layer_.w_ih && rearranged() ? K_ * layer_.I : 0};
  MultiplyRows<T> multiply_x_ = nullptr;
  const MatrixTimesVector<T> times_d_ = matrix_times_vector<T>(K_);
};

extern template class ParameterGradients<float>;
extern template class ParameterGradients<double>;

template <typename T>
ParameterGradients<T>::ParameterGradients(const RowsOfD& row, const Layer<T>& layer,
                                          const RecurrentBackwardRequest& request,
                                          const Parallel& parallel)
    : row_(row), layer_(layer), request_(request), workers_(parallel.threads), given_(parallel) {
  for_each_index(parallel_, workers_, [&](int64_t worker) {
    std::memset(sums_.data + worker * size_, 0, size_ * sizeof(T));
  });
  if (request.grad_x && layer.w_ih) arrange_w_ih();
}

template <typename T>
void ParameterGradients<T>::add(int64_t worker, const SlabGradients<T>& slab) const {
  if (slab.hi <= slab.lo || slab.n <= 0) return;
  const int64_t P = layer_.P, padded = layer_.padded, steps = slab.steps(), n = slab.n;
  const Sums to = sums(worker);
  // From column c of d on, and row `first` of the slab's steps.
  const auto d = [&](int64_t c, int64_t first = 0) {
    return StepRows<const T>{slab.d.at(first, 0).data + c, slab.d.step, slab.d.sample};
  };
  const auto from = [&](const StepRows<const T>& all, int64_t step) {
    return StepRows<const T>{all.at(step, slab.b).data, all.step, all.sample};
  };
  const int64_t recurrent = row_.first_recurrent * padded;
  const T one = 1;
  if (request_.grad_w_ih)
    add_transposed_product<T>(steps, n, layer_.I, N_, from(layer_.inputs, slab.lo), d(0), to.x);
  if (request_.grad_w_hh) {
    if (slab.lo == 0 && layer_.h0)
      add_transposed_product<T>(1, n, P, N_, {layer_.h(0, slab.b).data, 0, P}, d(recurrent), to.h);
    const int64_t skip = slab.lo == 0;
    if (steps > skip)
      add_transposed_product<T>(steps - skip, n, P, N_, from(layer_.output, slab.lo + skip - 1),
                                d(recurrent, skip), to.h);
  }
  if (row_.sees_c && request_.grad_b_hh) add_peepholes(slab, to.bias_h);
  if (request_.grad_b_ih || (request_.grad_b_hh && !row_.own_recurrent_bias()))
    add_transposed_product<T>(steps, n, 1, N_, {&one, 0, 0}, d(0), to.bias_x);
  if (request_.grad_b_hh && row_.first_recurrent)
    add_transposed_product<T>(steps, n, 1, N_, {&one, 0, 0}, d(recurrent), to.bias_h);
  if (request_.grad_w_hr)
    add_transposed_product<T>(steps, n, P, whole_vectors<T>(padded), d(row_.rows * padded),
                              d(row_.rows * padded + layer_.padded_P), to.hr);
  if (request_.grad_x) grad_x(slab);
}

template <typename T>
void ParameterGradients<T>::add_share(int64_t first, int64_t i, int64_t count,
                                      SlabGradients<T> slab) const {
  if (slab.steps() >= count) {
    const int64_t lo = slab.lo, steps = slab.steps();
    slab.lo = lo + steps * i / count;
    slab.hi = lo + steps * (i + 1) / count;
    slab.d.data = slab.d.at(slab.lo - lo, 0).data;
  } else {
    const int64_t b = slab.n * i / count;
    slab.d.data = slab.d.at(0, b).data;
    slab.b += b;
    slab.n = slab.n * (i + 1) / count - b;
  }
  add(first + i, slab);
}

template <typename T>
void ParameterGradients<T>::add_nothing(const SlabGradients<T>& slab) const {
  if (!request_.grad_x) return;
  for (int64_t t = slab.lo; t < slab.hi; ++t)
    for (int64_t r = 0; r < slab.n; ++r)
      std::memset(grad_x_row(t, slab.b + r), 0, layer_.I * sizeof(T));
}

template <typename T>
void ParameterGradients<T>::finish() {
  const Sums of = sums(0);
  const int64_t H = layer_.H, width = whole_vectors<T>(layer_.padded);
  collect(of.x, layer_.I, request_.grad_w_ih, row_.permuted());
  collect(of.h, layer_.P, request_.grad_w_hh, false);
  collect(of.bias_x, 1, request_.grad_b_ih, row_.permuted());
  collect(row_.own_recurrent_bias() ? of.bias_h : of.bias_x, 1, request_.grad_b_hh, false);
  if (T* const grad = static_cast<T*>(request_.grad_w_hr))
    for_each_index(parallel_, layer_.P,
                   [&](int64_t p) { all_.write(of.hr + p * width, H, grad + p * H); });
}

// Of peepholes: each gate's gradient times what it has seen of c, the last one's that after the
// step.
template <typename T>
void ParameterGradients<T>::add_peepholes(const SlabGradients<T>& slab, T* sums) const {
  const int64_t H = layer_.H, padded = layer_.padded;
  for (int64_t t = slab.lo + 1; t <= slab.hi; ++t)
    for (int64_t r = 0; r < slab.n; ++r) {
      const T* d = slab.d.at(t - 1 - slab.lo, 0)[r];
      const T *before = layer_.c(t - 1, slab.b).at(r, 0), *after = layer_.c(t, slab.b)[r];
      for (int gate = 0; gate < row_.gates; ++gate) {
        const T* c = gate == row_.gates - 1 ? after : before;
        for (int64_t k = 0; c && k < H; ++k) sums[gate * padded + k] += d[gate * padded + k] * c[k];
      }
    }
}

// Of as many rows a product as can be: W_ih is read for each of them.
template <typename T>
void ParameterGradients<T>::grad_x(const SlabGradients<T>& slab) const {
  const int64_t steps = slab.steps(), n = slab.n;
  const auto [step, sample] = request_.grad_x_stride;
  if (n < steps)
    for (int64_t r = 0; r < n; ++r)
      grad_x(steps, {slab.d.at(0, r).data, slab.d.step}, {grad_x_row(slab.lo, slab.b + r), step});
  else
    for (int64_t t = slab.lo; t < slab.hi; ++t)
      grad_x(n, slab.d.at(t - slab.lo, 0), {grad_x_row(t, slab.b), sample});
}

template <typename T>
void ParameterGradients<T>::grad_x(int64_t n, Rows<T> d, Rows<T> out) const {
  const int64_t I = layer_.I, H = layer_.H;
  if (!layer_.w_ih) {
    for (int64_t r = 0; r < n; ++r)
      for (int row = 0; row < row_.gates; ++row)
        std::memcpy(out[r] + row_.input_gate[row] * H, d[r] + row * layer_.padded, H * sizeof(T));
    return;
  }
  if (!narrow())
    return multiply_x_(n, K_, I, {d.data, d.ld}, rearranged() ? w_ih_.data : layer_.w_ih, {}, out);
  for (int64_t r = 0; r < n; ++r) times_d_(I, K_, {w_ih_.data, K_}, d[r], nullptr, out[r], nullptr);
}

// W_ih with its gates in d's order, padded; transposed if narrow.
template <typename T>
void ParameterGradients<T>::arrange_w_ih() {
  const int64_t I = layer_.I, H = layer_.H, padded = layer_.padded;
  multiply_x_ = multiply_rows<T>(I);
  if (!rearranged()) return;
  for (int64_t j = 0; j < K_; ++j) {
    const int64_t gate = row_.input_gate[j / padded], unit = j % padded;
    for (int64_t i = 0; i < I; ++i)
      w_ih_.data[narrow() ? i * K_ + j : j * I + i] =
          unit < H ? layer_.w_ih[(gate * H + unit) * I + i] : T(0);
  }
}

// grad (GH x inputs) from sums kept as (inputs x N), gates in torch's order.
template <typename T>
void ParameterGradients<T>::collect(const T* sum, int64_t inputs, void* grad, bool permuted) const {
  if (!grad) return;
  constexpr int W = kMaxWidth<T>;
  const int64_t H = layer_.H, blocks = ceil_div(inputs, W);
  for_each_index(parallel_, row_.gates * blocks, [&](int64_t n) {
    const int64_t row = n / blocks, first = n % blocks * W,
                  columns = min(int64_t(W), inputs - first);
    const int64_t gate = permuted ? row_.input_gate[row] : row;
    all_.write_turned(sum + first * N_ + row * layer_.padded, N_, columns, H,
                      static_cast<T*>(grad) + gate * H * inputs + first, inputs);
  });
}

}  // namespace bppsa::BPPSA_ISA
