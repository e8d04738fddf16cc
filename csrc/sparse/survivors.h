// Which weights survive: for each channel of results, what it reads.
#pragma once

#include "../simd/isa.h"

namespace bppsa::BPPSA_ISA {

struct Entry {
  int32_t channel, tap;
};

// Channels begin to end - 1.
struct Channels {
  int64_t begin, end;
};

struct Survivors {
  int64_t channels;
  const int32_t* rows;  // channels + 1: the entries of each
  const Entry* entries;

  int64_t size() const { return rows[channels] - rows[0]; }

  // The channels from a part of the work to another, parts counted from 0 to 1.
  Channels between(double begin, double end) const { return {channel_at(begin), channel_at(end)}; }

 private:
  // What a channel costs beside its entries.
  static constexpr int64_t kChannelWork = 2;

  // Of the channels before c.
  int64_t work(int64_t c) const { return rows[c] - rows[0] + kChannelWork * c; }

  // The first channel that begins at `part` or later.
  int64_t channel_at(double part) const {
    if (part <= 0) return 0;
    if (part >= 1) return channels;
    const int64_t before = int64_t(part * work(channels));
    int64_t low = 0, high = channels;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work(middle) < before)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }
};

}  // namespace bppsa::BPPSA_ISA
