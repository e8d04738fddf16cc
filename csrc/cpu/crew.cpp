// bppsa::set_crew and bppsa::crew_regions, for tests: see crew.h.
#include "crew.h"

#include <time.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bppsa::cpu {
namespace {

int64_t now() {  // nanoseconds
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

int64_t used() {  // nanoseconds that the calling thread has had a core
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The time that a thread may lose by waiting for others: a small part of all time, saved up to a
// hiccup's length. What regions gain counts as well, so that one of many small ones may lose; but
// only a little of it. Nothing is held against later regions for longer than seconds.
class Allowance {
 public:
  // Whether some is left at this time; times never fall.
  bool left(int64_t time) {
    left_ = std::min(kHiccup, left_ + (time - since_) / kPart);
    since_ = time;
    return left_ >= 0;
  }
  // Whether some was lost lately.
  bool touched() const { return left_ < kHiccup / 4 * 3; }
  void pay(int64_t lost) {
    left_ = std::clamp(left_ - std::max(lost, -kMostGained), -kMostOwed, kHiccup);
  }

 private:
  static constexpr int64_t kPart = 32, kMillisecond = 1'000'000;
  static constexpr int64_t kHiccup = 5 * kMillisecond, kMostOwed = 100 * kMillisecond,
                           kMostGained = kMillisecond / 50;
  int64_t left_ = kHiccup, since_ = 0;
};

enum class Mode { adaptive, together, alone };

struct Crew {
  Mode mode = Mode::adaptive;
  Allowance allowance;
  int64_t together = 0, alone = 0;  // regions so far
};
thread_local Crew crew;

using Body = void (*)(void* context, int64_t begin, int64_t end);

// Work in a share for each thread, as even as at::parallel_for divides it.
struct Work {
  int64_t threads, n;
  void* context;
  Body body;

  void operator()(int64_t first, int64_t end) const {
    const int64_t size = (n + threads - 1) / threads;
    for (int64_t i = first; i < end && i * size < n; ++i)
      body(context, i * size, std::min(n, (i + 1) * size));
  }
};

// The shares of one region, of which each thread takes some.
struct alignas(64) Shares {
  std::atomic<int64_t> undone;
  std::atomic<int64_t> duration{0};  // of those that are done, one after the other

  // Counts shares when it is left, also where one throws.
  struct Turn {
    Shares& shares;
    const int64_t count;
    int64_t (*const clock)();
    const int64_t start = clock();
    ~Turn() {
      shares.duration.fetch_add(clock() - start, std::memory_order_relaxed);
      shares.undone.fetch_sub(count, std::memory_order_release);
    }
  };

  // Leaves when all are done. After a moment the core goes to those who wait for one: in the
  // barrier of torch's threads a thread keeps it for milliseconds, even from the one that it waits
  // for. Where there are more threads than cores, the barrier lets go of it at once. (After twice
  // the time as before: see Patience in simd/team.h.)
  void wait(int64_t threads) const {
    int64_t leaves = 1000;
    static const int64_t cores = std::thread::hardware_concurrency();
    if (threads > cores) return;
    for (int64_t i = 0; undone.load(std::memory_order_acquire) > 0; ++i) {
      if (i < leaves) {
        relax();
      } else {
        std::this_thread::yield();
        leaves *= 2;
      }
    }
  }
};

// Returns the nanoseconds lost: by how much it took longer than its shares one after the other.
// A share that was interrupted looks like much work, unless its core's time is counted: a call of
// the system, for those who have lost some already.
int64_t work_together(const Work& work, int64_t start, bool exact) {
  Shares shares{work.threads};
  torch::stable::parallel_for(0, work.threads, 1, [&](int64_t first, int64_t end) {
    {
      const Shares::Turn turn{shares, end - first, exact ? used : now};
      work(first, end);
    }
    shares.wait(work.threads);
  });
  return now() - start - shares.duration.load(std::memory_order_relaxed);
}

void run(int threads, int64_t n, void* context, Body body) {
  if (threads <= 1) return body(context, 0, n);
  const Work work{threads, n, context, body};
  const int64_t start = now();
  const bool together =
      crew.mode == Mode::adaptive ? crew.allowance.left(start) : crew.mode == Mode::together;
  ++(together ? crew.together : crew.alone);
  if (together)
    crew.allowance.pay(work_together(work, start, crew.allowance.touched()));
  else
    body(context, 0, n);
}

}  // namespace

Parallel parallel_for_work(int64_t multiply_adds, bool flush_denormals) {
  constexpr int64_t kWorthThreads = 1 << 15;
  const int threads =
      multiply_adds < kWorthThreads ? 1 : static_cast<int>(torch::stable::get_num_threads());
  return {threads, flush_denormals, run};
}

void set_crew(std::string mode) {
  STD_TORCH_CHECK(mode == "adaptive" || mode == "together" || mode == "alone", "mode: found '",
                  mode, "', wanted 'adaptive', 'together' or 'alone'");
  crew.mode = mode == "adaptive"   ? Mode::adaptive
              : mode == "together" ? Mode::together
                                   : Mode::alone;
}

std::vector<int64_t> crew_regions() { return {crew.together, crew.alone}; }

}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CompositeExplicitAutograd, m) {
  m.impl("set_crew", TORCH_BOX(&bppsa::cpu::set_crew));
  m.impl("crew_regions", TORCH_BOX(&bppsa::cpu::crew_regions));
}
