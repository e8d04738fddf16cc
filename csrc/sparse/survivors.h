// Which weights survive: for each channel of results, what it reads.
#pragma once

#include "../simd/isa.h"

namespace bppsa::BPPSA_ISA {

struct Entry {
  int32_t channel, tap;
};

struct Survivors {
  int64_t channels;
  const int32_t* rows;  // channels + 1: the entries of each
  const Entry* entries;

  int64_t first() const { return rows[0]; }
  int64_t size() const { return rows[channels] - rows[0]; }

  // Entries, and what a channel costs beside them, up to channel c.
  int64_t work(int64_t c) const { return rows[c] - rows[0] + kChannelWork * c; }
  int64_t work() const { return work(channels); }

  // The first channel that begins at `work` or later.
  int64_t channel_at(int64_t work_before) const {
    int64_t low = 0, high = channels;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work(middle) < work_before)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  static constexpr int64_t kChannelWork = 2;
};

}  // namespace bppsa::BPPSA_ISA
