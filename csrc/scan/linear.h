// The linear scan: plain back-propagation, T matrix-vector steps, groups of samples in parallel.
//
// `walk` is its body and the others' building block: from g_hi down to g_lo.
#pragma once

#include "workspace.h"

namespace bppsa::BPPSA_ISA {

// Vectors of one walk over n samples.
template <class Cell>
struct Walker {
  using T = typename Cell::T;
  Buffer<T> memory;
  T* g;
  T* next;
  T* scratch;

  Walker(const Cell& cell, int64_t n)
      : memory(2 * n * cell.H() + cell.scratch(n)),
        g(memory.data),
        next(g + n * cell.H()),
        scratch(next + n * cell.H()) {}

  // On entry g holds g_hi, on return g_lo. Final: these are the true gradients.
  template <bool Final>
  void walk(const Cell& cell, int64_t hi, int64_t lo, int64_t b, int64_t n) {
    // A cell whose steps are too short to be called one by one walks them itself.
    if constexpr (requires { cell.template walk<Final>(hi, lo, b, n, g); })
      return cell.template walk<Final>(hi, lo, b, n, g);
    else
      walk_by_steps<Final>(cell, hi, lo, b, n);
  }

 private:
  template <bool Final>
  void walk_by_steps(const Cell& cell, int64_t hi, int64_t lo, int64_t b, int64_t n) {
    const auto steps = [&](int64_t samples) __attribute__((always_inline)) {
      for (int64_t t = hi; t > lo; --t) {
        cell.template step<Final>(t, b, samples, g, next, scratch);
        T* swap = g;
        g = next;
        next = swap;
      }
    };
    // A single sample's steps are short: a cell may spare them what a known number makes needless.
    if (n == 1)
      steps(1);
    else
      steps(n);
  }
};

template <class Cell>
void linear_scan(const Cell& cell, const Parallel& parallel) {
  const Groups groups(cell.batch(), parallel.threads);
  for_each_index(parallel, groups.count, [&](int64_t i) {
    const int64_t b = groups.begin(i), n = groups.size(i);
    Walker<Cell> walker(cell, n);
    cell.last(b, n, walker.g);
    walker.template walk<true>(cell, cell.steps(), 0, b, n);
    cell.first(b, n, walker.g);
  });
}

}  // namespace bppsa::BPPSA_ISA
