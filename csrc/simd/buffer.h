// Scratch memory.
#pragma once

#include <cstdlib>
#include <new>

#include "isa.h"

namespace bppsa::BPPSA_ISA {

// Large pieces of memory that a thread has used and will use again. Given back to the system they
// would come in new pages, each of which the first store to it waits for: for a layer over a few
// steps as long as the layer takes. What was used longest ago goes first.
class Pieces {
 public:
#if defined(__SANITIZE_ADDRESS__)  // which notices what is touched beyond a piece
  static constexpr int64_t kLarge = INT64_MAX;
#else
  static constexpr int64_t kLarge = 64 << 10;
#endif
  static constexpr int64_t kAlignment = 64, kMost = 64 << 20;

  ~Pieces() {
    while (count_) free_first();
  }

  // The smallest piece of at least, and not much more than, `bytes`, which it is set to.
  void* take(int64_t& bytes) {
    int best = -1;
    for (int i = 0; i < count_; ++i)
      if (pieces_[i].bytes >= bytes && pieces_[i].bytes / 2 <= bytes &&
          (best < 0 || pieces_[i].bytes < pieces_[best].bytes))
        best = i;
    if (best < 0) return std::aligned_alloc(kAlignment, bytes);
    const Piece found = pieces_[best];
    remove(best);
    bytes = found.bytes;
    return found.data;
  }

  void give(void* data, int64_t bytes) {
    if (bytes > kMost / 2) return std::free(data);
    while (count_ == kCount || (count_ && held_ + bytes > kMost)) free_first();
    pieces_[count_++] = {data, bytes};
    held_ += bytes;
  }

 private:
  struct Piece {
    void* data;
    int64_t bytes;
  };
  static constexpr int kCount = 16;

  void remove(int i) {
    held_ -= pieces_[i].bytes;
    for (--count_; i < count_; ++i) pieces_[i] = pieces_[i + 1];
  }
  void free_first() {
    std::free(pieces_[0].data);
    remove(0);
  }

  Piece pieces_[kCount];  // those used longest ago first
  int count_ = 0;
  int64_t held_ = 0;
};
inline thread_local Pieces pieces;

// Uninitialised memory for the life of the object, a cache line's alignment.
template <typename T>
struct Buffer {
  T* data;

  explicit Buffer(int64_t n)
      : data(nullptr),
        bytes_((n * int64_t(sizeof(T)) + 127) / Pieces::kAlignment * Pieces::kAlignment) {
    data = static_cast<T*>(bytes_ < Pieces::kLarge ? std::aligned_alloc(Pieces::kAlignment, bytes_)
                                                   : pieces.take(bytes_));
    if (!data) throw std::bad_alloc();
  }
  ~Buffer() { bytes_ < Pieces::kLarge ? std::free(data) : pieces.give(data, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  int64_t bytes_;
};

// Objects for the life of this one. (std::unique_ptr's functions would not be sealed in a level.)
template <typename T>
struct Array {
  T* const data;

  explicit Array(int64_t n) : data(new T[n]()) {}
  ~Array() { delete[] data; }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  T& operator[](int64_t i) const { return data[i]; }
};

}  // namespace bppsa::BPPSA_ISA
