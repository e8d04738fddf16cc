// An independently recurrent layer (IndRNN, arXiv:1803.04831): each unit hands its state to itself
// alone, h_t = phi(x_t + u h_{t-1}), by the formula of the vanilla RNN (cells/rnn.h).
//
// A thread has blocks of units of its own and takes them from step to step side by side, so that
// memory is read as it lies and the chains of neighbours hide each other's latency. State and
// gradient are handed on in the rows of the results themselves, which are still in the cache.
#pragma once

#include "../cells/rnn.h"
#include "../requests/indrnn.h"
#include "../simd/activations.h"
#include "../simd/buffer.h"
#include "../simd/parallel.h"
#include "../simd/rows.h"
#include "../simd/units.h"

namespace bppsa::BPPSA_ISA {

// At most so many units at a time: as measured (backwards more take 1.5 times as long, and why is
// not known).
constexpr int64_t kUnitsForward = 256, kUnitsBackward = 64;

// Rows are fetched so many steps before they are needed. What a processor fetches by itself ends
// with a page, and begins anew in the next: a thread's part of a step is often less than a page,
// and the rest of it another thread's.
constexpr int64_t kAhead = 2;

// body(b, k, n, i): for each step i of 0 ... T - 1, units k to k + n <= k + most of sample b.
template <class Body>
void for_each_part(const IndRnnRequest& request, int64_t most, const Parallel& parallel,
                   const Body& body) {
  const int64_t parts = ceil_div(request.H, most), count = request.B * parts;
  const int64_t workers = parallel.threads;
  for_each_index(parallel, workers, [&](int64_t worker) {
    const int64_t first = count * worker / workers, end = count * (worker + 1) / workers;
    for (int64_t i = 0; i < request.T; ++i)
      for (int64_t part = first; part < end; ++part) {
        const int64_t k = part % parts * most;
        body(part / parts, k, min(most, request.H - k), i);
      }
  });
}

// What is read where a row is not given.
template <typename T>
struct Zeros {
  T data[kUnitsForward] = {};

  const T* unless(const T* given) const { return given ? given : data; }
};

template <class Formula, typename T>
void independent_forward(const IndRnnForwardRequest& request, const Parallel& parallel) {
  using V = Vec<T, kMaxWidth<T>>;
  using Math = VectorMath<T, kMaxWidth<T>>;
  const int64_t H = request.H;
  const StepRows<const T> x{static_cast<const T*>(request.x), request.x_stride[0],
                            request.x_stride[1]};
  const StepRows<T> output{static_cast<T*>(request.output), request.step, H};
  const ConstRows<T> h0{static_cast<const T*>(request.h0), H};
  const Rows<T> h_n{static_cast<T*>(request.h_n), H};
  const Zeros<T> zeros;
  const auto part = [&](int64_t b, int64_t first, int64_t n, int64_t i) {
    const T* u = static_cast<const T*>(request.u) + first;
    const T* from_x = x.at(i, b).at(0, first);
    const T* before = i > 0 ? output.at(i - 1, b).at(0, first) : zeros.unless(h0.at(b, first));
    T* h = output.at(i, b).at(0, first);
    const int64_t later = min(i + kAhead, request.T - 1);
    const T *next_x = x.at(later, b).at(0, first), *next_h = output.at(later, b).at(0, first);
    for_each_unit<T>(n, [&](auto units, int64_t k) __attribute__((always_inline)) {
      __builtin_prefetch(next_x + k);
      __builtin_prefetch(next_h + k, 1);
      V z[] = {units.load(from_x + k) + units.load(u + k) * units.load(before + k)};
      units.store(h + k, Formula::template step<Math>(z, UnitState<V>{}).h);
    });
    if (i == request.T - 1) std::memcpy(h_n.at(b, first), h, n * sizeof(T));
  };
  for_each_part(request, kUnitsForward, parallel, part);
}

template <class Formula, typename T>
void independent_backward(const IndRnnBackwardRequest& request, const Parallel& parallel) {
  using V = Vec<T, kMaxWidth<T>>;
  using Math = VectorMath<T, kMaxWidth<T>>;
  const int64_t steps = request.T, B = request.B, H = request.H;
  const StepRows<const T> output{static_cast<const T*>(request.output), request.step, H};
  const StepRows<const T> grad{static_cast<const T*>(request.grad), request.grad_stride[0],
                               request.grad_stride[1]};
  const StepRows<T> grad_x{static_cast<T*>(request.grad_x), request.step, H};
  const ConstRows<T> h0{static_cast<const T*>(request.h0), H};
  const ConstRows<T> grad_hn{static_cast<const T*>(request.grad_hn), H};
  const Rows<T> grad_h0{static_cast<T*>(request.grad_h0), H};
  // Of u: a sum for each sample, so that none depends on how many threads there are.
  const Buffer<T> memory(B * H);
  const Rows<T> sums{memory.data, H};
  std::memset(sums.data, 0, B * H * sizeof(T));
  const Zeros<T> zeros;
  const auto part = [&](int64_t b, int64_t first, int64_t n, int64_t i) {
    const int64_t t = steps - 1 - i;
    const T* u = static_cast<const T*>(request.u) + first;
    const T* h = output.at(t, b).at(0, first);
    const T* before = t > 0 ? output.at(t - 1, b).at(0, first) : zeros.unless(h0.at(b, first));
    const T* direct = grad.data ? grad.at(t, b).at(0, first) : zeros.data;
    T *to = grad_x.at(t, b).at(0, first), *sum = sums.at(b, first);
    const int64_t earlier = max(t - kAhead, int64_t(0));
    const T* next_to = grad_x.at(earlier, b).at(0, first);
    const T* next_direct = grad.data ? grad.at(earlier, b).at(0, first) : zeros.data;
    const T* next_before = output.at(max(earlier - 1, int64_t(0)), b).at(0, first);
    // after(units, k): what the step after this one hands back.
    const auto step = [&](const auto& after) __attribute__((always_inline)) {
      for_each_unit<T>(n, [&](auto units, int64_t k) __attribute__((always_inline)) {
        const V none[1] = {}, g[1] = {units.load(direct + k) + after(units, k)};
        const auto factors = Formula::template factors<Math>(none, units.load(h + k), V{});
        V d[1], past[1];
        Formula::template pull<Math>(factors, g, d, past);
        __builtin_prefetch(next_to + k, 1);
        __builtin_prefetch(next_direct + k);
        __builtin_prefetch(next_before + k);
        units.store(to + k, d[0]);
        units.store(sum + k, units.load(sum + k) + d[0] * units.load(before + k));
      });
    };
    if (i == 0) {
      const T* last = zeros.unless(grad_hn.at(b, first));
      step([&](auto units, int64_t k) { return units.load(last + k); });
    } else {
      const T* next = grad_x.at(t + 1, b).at(0, first);
      step([&](auto units, int64_t k) { return units.load(u + k) * units.load(next + k); });
    }
    if (t == 0 && grad_h0)
      for (int64_t k = 0; k < n; ++k) grad_h0.at(b, first)[k] = u[k] * to[k];
  };
  for_each_part(request, kUnitsBackward, parallel, part);
  if (!request.grad_u) return;
  for (int64_t k = 0; k < H; ++k) {
    T sum = 0;
    for (int64_t b = 0; b < B; ++b) sum += sums[b][k];
    static_cast<T*>(request.grad_u)[k] = sum;
  }
}

}  // namespace bppsa::BPPSA_ISA
