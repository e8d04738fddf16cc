// Large results on large pages. The allocator takes tens of megabytes fresh from the system in
// every step and gives them back: 10,000 pages of 4 KiB, each of which the first store to it waits
// for, took as long as the forward of an LSTM itself.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bppsa {

// Asks the system to back memory that is not in use yet by pages of 2 MiB, where it is large enough
// to hold several. Advice: where the system has none to give, or is set not to, nothing happens.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kPage = 2 << 20;
  if (bytes < 4 * std::int64_t(kPage)) return;
  const auto begin = (reinterpret_cast<std::uintptr_t>(data) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kPage * kPage;
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace bppsa
