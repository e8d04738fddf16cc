// What every request has: the type of its numbers, the algorithm of its scan, the threads it may
// use.
//
// Requests are what the operators ask of a kernel, and all that the kernels know of a call: plain
// structs, without torch and without templates of the standard library, so that every instruction
// set, nvcc and the emulator read the same ones. operators/ makes and checks them.
#pragma once

#include <cstdint>

namespace bppsa {

enum class Storage { f32, f64, bf16, f16 };

constexpr int64_t bytes_of(Storage storage) {
  return storage == Storage::f64 ? 8 : storage == Storage::f32 ? 4 : 2;
}

enum class Algorithm { linear, chunked, blelloch };

// Levels that a tree over any number of steps can have.
constexpr int64_t kMaxLevels = 62;

struct Plan {
  Algorithm algorithm;
  int64_t chunk;   // steps a chunk (chunked)
  int64_t levels;  // up-sweep levels (blelloch)
};

// Runs body(context, begin, end) over [0, n), in contiguous shares, one for each of `threads`.
struct Parallel {
  int threads;
  bool flush_denormals;  // see simd/denormals.h
  void (*run)(int threads, int64_t n, void* context, void (*body)(void*, int64_t, int64_t));
};

}  // namespace bppsa
