// Scratch memory.
#pragma once

#include <cstdlib>
#include <new>

#include "isa.h"

namespace bppsa::BPPSA_ISA {

// Uninitialised memory for the life of the object, a cache line's alignment.
template <typename T>
struct Buffer {
  T* data;

  explicit Buffer(int64_t n)
      : data(static_cast<T*>(std::aligned_alloc(64, (n * sizeof(T) + 127) / 64 * 64))) {
    if (!data) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

}  // namespace bppsa::BPPSA_ISA
