// y = x W^T + b for the inputs of all steps at once, where a layer's operator takes their sums, and
// its gradients.
//
// Inputs go through in blocks of rows that stay in the cache: of a backward's both products read
// the gradients there.
#pragma once

#include "../requests/linear.h"
#include "../simd/long_matrix.h"
#include "../simd/parallel.h"
#include "../simd/products.h"
#include "../simd/worker_sums.h"

namespace bppsa::BPPSA_ISA {

// Rows as one run after another: of as many rows as can be, whether they lie step by step or
// sample by sample.
struct Runs {
  static constexpr int64_t kRows = 128;
  int64_t count, rows;                     // runs, rows of each
  int64_t x_run, x_row;                    // numbers from one to the next
  int64_t run, row;                        // the same in rows of a contiguous (T, B, ·)
  int64_t blocks = ceil_div(rows, kRows);  // of a run

  static Runs of(const LinearRequest& request) {
    const int64_t T = request.T, B = request.B;
    const auto [step, sample] = request.x_stride;
    if (step == B * sample || B == 1) return {1, T * B, 0, B == 1 ? step : sample, 0, 1};
    if (T > B) return {B, T, sample, step, 1, B};
    return {T, B, step, sample, B, 1};
  }

  int64_t all_blocks() const { return count * blocks; }

  // Block i: n rows, from row `first` of run `of` on.
  struct Block {
    int64_t of, first, n;
  };
  Block block(int64_t i) const {
    const int64_t first = i % blocks * kRows;
    return {i / blocks, first, min(kRows, rows - first)};
  }

  template <typename T>
  ConstRows<T> x(const void* all, const Block& block) const {
    return {static_cast<const T*>(all) + block.of * x_run + block.first * x_row, x_row};
  }
  // Of a contiguous tensor with so many numbers a row.
  template <typename T>
  Rows<T> contiguous(T* all, int64_t width, const Block& block) const {
    return {all + (block.of * run + block.first * row) * width, row * width};
  }
};

template <typename T>
void linear_forward_as(const LinearForwardRequest& request, const Parallel& parallel) {
  const Runs runs = Runs::of(request);
  const int64_t I = request.I, O = request.O;
  const T* const weight = static_cast<const T*>(request.weight);
  const ConstRows<T> bias{static_cast<const T*>(request.bias), 0};
  for_each_index_reading(
      parallel, runs.all_blocks(), LongMatrix<T>::bytes(I, O),
      [&](bool needed) { return LongMatrix<T>::transposed(I, O, weight, needed); },
      [&](int64_t i, const LongMatrix<T>& matrix) {
        const auto block = runs.block(i);
        matrix.multiply(block.n, runs.x<T>(request.x, block), bias,
                        runs.contiguous(static_cast<T*>(request.output), O, block));
      });
}

template <typename T>
void linear_backward_as(const LinearBackwardRequest& request, const Parallel& parallel) {
  const Runs runs = Runs::of(request);
  const int64_t I = request.I, O = request.O, N = whole_vectors<T>(O);
  const T* const weight = static_cast<const T*>(request.weight);
  const int64_t workers = max(int64_t(1), min(int64_t(parallel.threads), runs.all_blocks()));
  // Of a worker: of the weight, transposed, and of the bias.
  const int64_t of_weight = request.grad_weight ? I * N : 0;
  const WorkerSums<T> all{int(workers), of_weight + N};
  const Buffer<T> sums(workers * all.size);
  for_each_index_reading(
      parallel, workers, LongMatrix<T>::bytes(O, I),
      [&](bool needed) {
        return LongMatrix<T>::as_it_lies(O, I, weight, needed && request.grad_x);
      },
      [&](int64_t worker, const LongMatrix<T>& matrix) {
        T *const to = sums.data + worker * all.size, *const of_bias = to + of_weight;
        std::memset(to, 0, all.size * sizeof(T));
        // Gradients, where rows are no whole vectors with zeros behind them.
        const Buffer<T> memory(N == O ? 0 : Runs::kRows * N);
        const Rows<T> padded{memory.data, N};
        if (N != O) std::memset(memory.data, 0, Runs::kRows * N * sizeof(T));
        const T one = 1;
        const int64_t end = runs.all_blocks() * (worker + 1) / workers;
        for (int64_t i = runs.all_blocks() * worker / workers; i < end; ++i) {
          const auto block = runs.block(i);
          const int64_t n = block.n;
          const ConstRows<T> grad = runs.contiguous(static_cast<const T*>(request.grad), O, block);
          for (int64_t r = 0; N != O && r < n; ++r) std::memcpy(padded[r], grad[r], O * sizeof(T));
          const ConstRows<T> d = N == O ? grad : ConstRows<T>{padded.data, N};
          const ConstRows<T> x = runs.x<T>(request.x, block);
          if (request.grad_weight)
            add_transposed_product<T>(1, n, I, N, {x.data, 0, x.ld}, {d.data, 0, d.ld}, to);
          if (request.grad_bias)
            add_transposed_product<T>(1, n, 1, N, {&one, 0, 0}, {d.data, 0, d.ld}, of_bias);
          if (request.grad_x)
            matrix.multiply(n, d, {}, runs.contiguous(static_cast<T*>(request.grad_x), I, block));
        }
      });
  if (request.grad_bias) all.write(sums.data + of_weight, O, static_cast<T*>(request.grad_bias));
  if (T* const to = static_cast<T*>(request.grad_weight))
    all.write_transposed(parallel, sums.data, N, I, O, to);
}

}  // namespace bppsa::BPPSA_ISA
