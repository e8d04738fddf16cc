#pragma once
// A GPU of one block at a time, on the host, for tests: the kernels' own sources run with every
// CUDA thread as a fiber, so that thread mappings, barriers, shuffles and launches are what is
// tested.
//
// It is stricter than the device. Threads between two barriers run in an order drawn from `seed`,
// so that a missing barrier changes results; shared memory and scratch start as NaN; memory past
// the shared bytes asked for is checked; a barrier or shuffle that some thread never reaches is an
// error. Not emulated: memory ordering finer than barriers, registers, alignment, time.

#include <math.h>
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct Dim3 {
  unsigned x = 0;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace bppsa::emulator {

constexpr int kWarpSize = 32, kMaxThreads = 1024;

// Waits until `size` threads have arrived; their flags are counted, in two slots, so that a fast
// thread at the next barrier does not disturb a slow one at this.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  int flags[2] = {};
};

class Device {
 public:
  unsigned seed = 0;
  int64_t untrusted = 0;  // reports of report_untrusted, one a thread
  int64_t barriers = 0;   // reached by all, shuffles too
  unsigned char* shared = nullptr;

  static Device& get() {
    static Device device;
    return device;
  }

  /// Runs one block to its end.
  void run(int threads, size_t shared_bytes, const std::function<void()>& kernel) {
    while (static_cast<int>(fibers_.size()) < threads) add_fiber();
    std::vector<unsigned char> memory(shared_bytes + kGuard, 0xff);
    shared = memory.data();
    kernel_ = &kernel;
    threads_ = threads;
    block_ = Barrier{};
    warps_.assign(threads / kWarpSize, Barrier{});
    for (int i = 0; i < threads; ++i) fibers_[i]->state = kReady;
    while (sweep()) {
    }
    for (size_t i = shared_bytes; i < memory.size(); ++i) {
      if (memory[i] != 0xff) throw std::runtime_error("a kernel wrote past its shared memory");
    }
  }

  /// How many threads of the warp have the flag.
  int sync_warp(bool flag) { return sync(warps_[current_ / kWarpSize], kWarpSize, flag); }

  /// How many threads of the block have the flag.
  int sync_block(bool flag) { return sync(block_, threads_, flag); }

  template <typename T>
  T shuffle_xor(T value, int distance) {
    const int warp = current_ / kWarpSize, lane = current_ % kWarpSize;
    Barrier& barrier = warps_[warp];
    unsigned char* const slots = slots_[warp][barrier.generation % 2];
    std::memcpy(slots + lane * sizeof(double), &value, sizeof(T));
    sync(barrier, kWarpSize, false);
    std::memcpy(&value, slots + (lane ^ distance) * sizeof(double), sizeof(T));
    return value;
  }

 private:
  enum State { kReady, kWaiting, kDone };
  static constexpr size_t kStack = 64 * 1024, kGuard = 4096;

  struct Fiber {
    State state = kDone;
    bool started = false;
    ucontext_t entry;
    jmp_buf resume;
    const Barrier* barrier = nullptr;
    unsigned generation = 0;
    std::unique_ptr<char[]> stack{new char[kStack]};
  };

  void add_fiber() {
    fibers_.push_back(std::make_unique<Fiber>());
    ucontext_t& entry = fibers_.back()->entry;
    getcontext(&entry);
    entry.uc_stack.ss_sp = fibers_.back()->stack.get();
    entry.uc_stack.ss_size = kStack;
    makecontext(&entry, &Device::body, 0);
  }

  static void body() {
    for (;;) {  // a fiber serves block after block
      (*get().kernel_)();
      get().fibers_[get().current_]->state = kDone;
      get().yield();
    }
  }

  // Contexts start with setcontext but switch with _longjmp, which makes no system calls.
  __attribute__((noinline)) void yield() {
    if (!_setjmp(fibers_[current_]->resume)) _longjmp(scheduler_, 1);
  }

  __attribute__((noinline)) void resume(int thread) {
    current_ = thread;
    threadIdx.x = thread;
    Fiber& fiber = *fibers_[thread];
    if (_setjmp(scheduler_)) return;
    if (fiber.started) _longjmp(fiber.resume, 1);
    fiber.started = true;
    setcontext(&fiber.entry);
  }

  /// Lets every thread that can run do so once. False when all are done.
  bool sweep() {
    seed = seed * 1664525u + 1013904223u;
    const int start = seed / 65536u % threads_, direction = seed >> 31 ? 1 : threads_ - 1;
    int done = 0, ran = 0;
    for (int n = 0; n < threads_; ++n) {
      const int thread = static_cast<int>((start + int64_t{n} * direction) % threads_);
      Fiber& fiber = *fibers_[thread];
      if (fiber.state == kWaiting && fiber.barrier->generation != fiber.generation) {
        fiber.state = kReady;
      }
      if (fiber.state == kReady) resume(thread), ++ran;
      done += fiber.state == kDone;
    }
    if (done == threads_) return false;
    if (ran == 0) {
      // The fibers that wait hold half-run kernels: they can never serve again.
      for (auto& fiber : fibers_) fiber.release();
      fibers_.clear();
      throw std::runtime_error("a barrier or shuffle was not reached by all threads");
    }
    return true;
  }

  int sync(Barrier& barrier, int size, bool flag) {
    const unsigned generation = barrier.generation;
    const int slot = generation % 2;
    barrier.flags[slot] = (barrier.arrived ? barrier.flags[slot] : 0) + flag;
    if (++barrier.arrived == size) {
      barrier.arrived = 0;
      ++barrier.generation;
      ++barriers;
    } else {
      Fiber& fiber = *fibers_[current_];
      fiber.state = kWaiting;
      fiber.barrier = &barrier;
      fiber.generation = generation;
      yield();
    }
    return barrier.flags[slot];
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Barrier> warps_;
  Barrier block_;
  unsigned char slots_[kMaxThreads / kWarpSize][2][kWarpSize * sizeof(double)];
  const std::function<void()>* kernel_ = nullptr;
  int threads_ = 0, current_ = 0;
  jmp_buf scheduler_;
};

}  // namespace bppsa::emulator

inline void __syncthreads() { bppsa::emulator::Device::get().sync_block(false); }
inline int __syncthreads_or(int flag) {
  return bppsa::emulator::Device::get().sync_block(flag) > 0;
}
inline int __syncthreads_and(int flag) {
  return bppsa::emulator::Device::get().sync_block(flag) == static_cast<int>(blockDim.x);
}
inline void __syncwarp() { bppsa::emulator::Device::get().sync_warp(false); }
inline int __any_sync(unsigned, int flag) {
  return bppsa::emulator::Device::get().sync_warp(flag) > 0;
}
inline float __expf(float x) { return expf(x); }
inline float __fdividef(float x, float y) { return x / y; }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return bppsa::emulator::Device::get().shuffle_xor(value, distance);
}

namespace bppsa::cuda {

inline void report_untrusted() { ++emulator::Device::get().untrusted; }

// No clusters here: the launcher says so, and these are there to be compiled only.
constexpr bool kHasClusters = false;
inline void store_in_cluster(float*, float, unsigned) {}
inline void sync_cluster() {}

inline unsigned char* shared_memory() { return emulator::Device::get().shared; }

// The host's stand-in for the launcher of launcher.cuh, with limits a test can set.
class Launcher {
 public:
  template <typename acc_t>
  acc_t* allocate(int64_t count) {
    if (scratch_.size() == kMostScratch) throw std::runtime_error("scratch is not given back");
    scratch_.emplace_back(new unsigned char[count * sizeof(acc_t)]);
    std::memset(scratch_.back().get(), 0xff, count * sizeof(acc_t));
    return reinterpret_cast<acc_t*>(scratch_.back().get());
  }

  template <class Run>
  void with_scratch(Run run) {
    const auto before = static_cast<std::ptrdiff_t>(scratch_.size());
    run();
    scratch_.erase(scratch_.begin() + before, scratch_.end());
  }

  template <typename... Parameters, typename... Arguments>
  void operator()(const char* name, void (*kernel)(Parameters...), int64_t tasks, int threads,
                  size_t shared, const Arguments&... arguments) {
    if (tasks == 0) return;
    if (threads < 1 || threads > 512 || threads % emulator::kWarpSize || shared > shared_limit) {
      throw std::runtime_error(std::string(name) + ": bad launch");
    }
    launches.push_back(name);
    blockDim.x = threads;
    gridDim.x = static_cast<unsigned>(std::min(tasks, grid_limit));
    const std::function<void()> body = [&] { kernel(arguments...); };
    emulator::Device& device = emulator::Device::get();
    const bool forwards = device.seed % 2;  // blocks must not depend on each other
    for (unsigned n = 0; n < gridDim.x; ++n) {
      blockIdx.x = forwards ? n : gridDim.x - 1 - n;
      device.run(threads, shared, body);
    }
  }

  template <typename... Parameters, typename... Arguments>
  void in_clusters(int size, const char* name, void (*kernel)(Parameters...), int64_t tasks,
                   int threads, size_t shared, const Arguments&... arguments) {
    if (size > 1) throw std::runtime_error(std::string(name) + ": clusters are not emulated");
    operator()(name, kernel, tasks, threads, shared, arguments...);
  }

  size_t shared_limit = 227 * 1024;
  bool clusters = false;
  int processors = 132;
  size_t scratch_limit = size_t{1} << 30;
  int64_t grid_limit = 2147483647;
  std::vector<std::string> launches;

 private:
  static constexpr size_t kMostScratch = 16;  // at a time; more than a forward and a backward need

  std::vector<std::unique_ptr<unsigned char[]>> scratch_;
};

}  // namespace bppsa::cuda
