// Threads that take steps together: each does its parts of a step, then waits for the others'.
//
// Torch's threads may come late, or do their shares one after the other, and a thread may lose its
// core at any moment, for milliseconds. So a team sets out when all are there, or its first does
// all parts alone; and where a member has waited long, the first goes on alone after that step.
// Parts are what they are, whoever does them: results have the same bits.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "buffer.h"
#include "parallel.h"

namespace bppsa::BPPSA_ISA {

class Team {
 public:
  explicit Team(int64_t parts) : parts_(parts), done_(parts) {}

  // Whose parts a member does, [first, end); none where another does all of them.
  struct Member {
    int64_t first, end;
    int64_t lost = 0;  // nanoseconds, of waiting long
  };

  // Waits for the other members, but not for long.
  Member gather(int64_t first, int64_t end) {
    if (there_.fetch_add(end - first) + end - first == parts_) settle(kTogether);
    for (Patience patience; state_.load(std::memory_order_acquire) == kOpen;)
      if (patience.lost() > kLate && settle(kAlone)) return {0, parts_};
    return state_.load(std::memory_order_acquire) == kTogether ? Member{first, end} : Member{0, 0};
  }

  // After step t of a member's parts: waits for all others. Whether there is a next one for it.
  bool next(Member& member, int64_t t) {
    if (member.end - member.first == parts_) return true;
    const bool first = member.first == 0;
    const bool stops = first && (tired_.load(std::memory_order_relaxed) || member.lost > kTired);
    for (int64_t i = member.first; i < member.end; ++i)
      done_[i].value.store(2 * t + stops, std::memory_order_release);
    bool stopped = stops;
    for (int64_t i = 0; i < parts_; ++i) {
      if (i == member.first) i = member.end;
      if (i == parts_) break;
      int64_t done = done_[i].value.load(std::memory_order_acquire);
      if (done < 2 * t) {
        Patience patience;
        do {
          const int64_t lost = patience.lost();
          if (member.lost + lost > kTired) tired_.store(true, std::memory_order_relaxed);
          done = done_[i].value.load(std::memory_order_acquire);
        } while (done < 2 * t);
        member.lost += patience.so_far;
      }
      // (The first may be a step ahead by now, and stop there.)
      if (i == 0) stopped = done == 2 * t + 1;
    }
    if (failed_.load(std::memory_order_relaxed)) return false;
    if (stopped && first) member = {0, parts_};
    return first || !stopped;
  }

  // Of a member that throws: nobody waits for it, and none goes on.
  void fail(int64_t first, int64_t end) {
    failed_.store(true, std::memory_order_relaxed);
    for (int64_t i = first; i < end; ++i)
      done_[i].value.store(INT64_MAX, std::memory_order_release);
  }

 private:
  enum State { kOpen, kTogether, kAlone };
  static constexpr int64_t kLate = 200'000, kTired = 1'000'000;  // nanoseconds

  struct alignas(128) Word {
    std::atomic<int64_t> value{-2};
  };

  // Of one that waits: for a moment with its core, then leaving that to others, each time after
  // twice as long: a scheduler may count it as a slice that was used.
  class Patience {
   public:
    int64_t so_far = 0;

    // The nanoseconds since the moment. (Also those for which the core was left: on a busy machine
    // that is the most of it, and what is waited for is there afterwards.)
    int64_t lost() {
      if (++spins_ < kMoment) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return 0;
      }
      using namespace std::chrono;
      if (spins_ == kMoment) start_ = steady_clock::now();
      if (spins_ == leaves_) std::this_thread::yield(), leaves_ *= 2;
      return so_far = duration_cast<nanoseconds>(steady_clock::now() - start_).count();
    }

   private:
    static constexpr int64_t kMoment = 2000;
    int64_t spins_ = 0, leaves_ = kMoment;
    std::chrono::steady_clock::time_point start_;
  };

  bool settle(State state) {
    int open = kOpen;
    return state_.compare_exchange_strong(open, state, std::memory_order_acq_rel);
  }

  const int64_t parts_;
  std::atomic<int64_t> there_{0};
  std::atomic<int> state_{kOpen};
  std::atomic<bool> tired_{false}, failed_{false};
  const Array<Word> done_;
};

// Calls make(i, place) for the parts i in [0, n), which puts a Part in its place, then
// step(part, t) for the steps t in [1, steps]: those of one t before those of the next.
template <class Part, class Make, class Step>
void step_by_step(const Parallel& parallel, int64_t n, int64_t steps, const Make& make,
                  const Step& step) {
  struct Context {
    const Make& make;
    const Step& step;
    const int64_t steps;
    const bool flush_denormals;
    Team team;
    const Array<std::optional<Part>> parts;
  } context{make, step, steps, parallel.flush_denormals, Team(n), Array<std::optional<Part>>(n)};
  const auto share = [](void* p, int64_t begin, int64_t end) {
    Context& context = *static_cast<Context*>(p);
    const FlushDenormals flush(context.flush_denormals);
    Team::Member member = context.team.gather(begin, end);
    if (member.first == member.end) return;
    const int64_t first = member.first, last = member.end;
    try {
      for (int64_t i = first; i < last; ++i) context.make(i, context.parts[i]);
      bool goes_on = context.team.next(member, 0);
      for (int64_t t = 1; goes_on && t <= context.steps; ++t) {
        for (int64_t i = member.first; i < member.end; ++i) context.step(*context.parts[i], t);
        goes_on = context.team.next(member, t);
      }
      // By the thread that made it, whose memory it is; but where another went on with it.
      for (int64_t i = first; goes_on && i < last; ++i) context.parts[i].reset();
    } catch (...) {
      context.team.fail(first, last);
      throw;
    }
  };
  parallel.run(parallel.threads, n, &context, share);
}

}  // namespace bppsa::BPPSA_ISA
