// One source, several instruction sets.
//
// The sources in cpu/levels/ (but choose.cpp) are compiled once per level (x86-64-v2, v3, v4, or
// the plain architecture elsewhere) with BPPSA_ISA naming the level. Everything they include lives
// in bppsa::BPPSA_ISA, so that the linker can never merge a template compiled for v4 with the same
// template compiled for v2. For the same reason these headers use no template of the standard
// library and nothing of torch.
#pragma once

#include <cstdint>

#ifndef BPPSA_ISA
#error "compile with -DBPPSA_ISA=<level>"
#endif

#if defined(__AVX512F__)
#define BPPSA_VECTOR_BYTES 64
#define BPPSA_VECTOR_REGISTERS 32
#elif defined(__AVX__)
#define BPPSA_VECTOR_BYTES 32
#define BPPSA_VECTOR_REGISTERS 16
#elif defined(__aarch64__)
#define BPPSA_VECTOR_BYTES 16
#define BPPSA_VECTOR_REGISTERS 32
#else
#define BPPSA_VECTOR_BYTES 16
#define BPPSA_VECTOR_REGISTERS 16
#endif

#define BPPSA_INLINE inline __attribute__((always_inline))

namespace bppsa::BPPSA_ISA {

template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace bppsa::BPPSA_ISA
