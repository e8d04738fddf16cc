// Work on several threads: the batch in groups of samples, a loop over indices.
#pragma once

#include "../requests/plan.h"
#include "denormals.h"

namespace bppsa::BPPSA_ISA {

// The batch in nearly equal groups, at least one a thread where there are samples enough,
// each small enough that its vectors stay in the first-level cache.
struct SampleGroups {
  static constexpr int64_t kMaxSize = 64;
  int64_t batch, count;

  SampleGroups(int64_t batch, int64_t threads)
      : batch(batch),
        count(batch == 0 ? 0 : min(batch, ceil_div(ceil_div(batch, kMaxSize), threads) * threads)) {
  }
  // So many, of any size.
  static SampleGroups of(int64_t batch, int64_t count) {
    SampleGroups groups(batch, 1);
    groups.count = count;
    return groups;
  }
  int64_t begin(int64_t i) const { return batch * i / count; }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

// All threads, or one alone for so few numbers that waking the others costs more.
inline Parallel worth_threads(Parallel parallel, int64_t numbers) {
  if (numbers < int64_t(1) << 15) parallel.threads = 1;
  return parallel;
}

// Calls body(i, state) for i in [0, n); each thread's share has a state of its own, from make().
template <class Make, class Body>
inline void for_each_index(const Parallel& parallel, int64_t n, const Make& make,
                           const Body& body) {
  struct Context {
    const Make& make;
    const Body& body;
    bool flush_denormals;
  } context{make, body, parallel.flush_denormals};
  const auto share = [](void* p, int64_t begin, int64_t end) {
    const Context& context = *static_cast<const Context*>(p);
    const FlushDenormals flush(context.flush_denormals);
    auto state = context.make();
    for (int64_t i = begin; i < end; ++i) context.body(i, state);
  };
  if (n <= 1 || parallel.threads <= 1)
    share(&context, 0, n);
  else
    parallel.run(parallel.threads, n, &context, share);
}

template <class Body>
inline void for_each_index(const Parallel& parallel, int64_t n, const Body& body) {
  struct Nothing {};
  for_each_index(parallel, n, [] { return Nothing{}; }, [&](int64_t i, Nothing&) { body(i); });
}

// Calls body(i, what) for i in [0, n), where all read the same `what`: make(true), of so many
// bytes; make(false) has nothing in it. As long as it stays in a core's cache each thread makes its
// own: to fetch what another has just written from the cache of that one's core takes longer.
template <class Make, class Body>
inline void for_each_index_reading(const Parallel& parallel, int64_t n, int64_t bytes,
                                   const Make& make, const Body& body) {
  constexpr int64_t kStays = 6 << 20;
  const bool own = bytes <= kStays;
  const auto shared = make(!own);
  for_each_index(
      parallel, n, [&] { return make(own); },
      [&](int64_t i, const auto& made) { body(i, own ? made : shared); });
}

}  // namespace bppsa::BPPSA_ISA
