// Numbers too small for a normal float count as zero while a recurrent layer's kernel runs.
//
// A gradient that fades over hundreds of steps spends most of them below 1.2e-38, where x86 cores
// take some 150 cycles an operation (seen: 17 times the time of a whole backward). The flush costs
// what no gradient can be read from: a number below the smallest normal one. XLA does the same. The
// scans over Jacobians that a caller gives keep every number: theirs may be of any size.
#pragma once

#include "isa.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bppsa::BPPSA_ISA {

// Sets the mode for the calling thread, and back.
class FlushDenormals {
 public:
  explicit FlushDenormals(bool wanted) : before_(get()), wanted_(wanted) {
    if (wanted_) set(before_ | kFlush);
  }
  ~FlushDenormals() {
    if (wanted_) set(before_);
  }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__x86_64__)
  using Word = unsigned;
  static constexpr Word kFlush = 0x8040;  // results (FTZ) and operands (DAZ)
  static Word get() { return _mm_getcsr(); }
  // What is computed goes from memory to memory: no load or store passes the change of mode.
  static void set(Word word) {
    asm volatile("" ::: "memory");
    _mm_setcsr(word);
    asm volatile("" ::: "memory");
  }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kFlush = Word(1) << 24;  // FZ
  static Word get() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = unsigned;
  static constexpr Word kFlush = 0;
  static Word get() { return 0; }
  static void set(Word) {}
#endif
  const Word before_;
  const bool wanted_;
};

}  // namespace bppsa::BPPSA_ISA
