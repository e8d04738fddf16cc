// What a regularised layer's kernels (regularised.h, cuda/recurrent/regularised.cuh) say of their
// rows, for both backends: which gates are normalised together, and what a forward saves.
#pragma once

#include "../cells/cell.h"
#include "../requests/regularised.h"

namespace bppsa::BPPSA_BACKEND {

// The gates that are normalised together: of an LSTM all, of a GRU r and z, and n by itself.
template <class Cell>
struct Normalised {
  static constexpr int kFirst = Cell::kStates == 2 ? Cell::kGates : Cell::kGates - 1;
  static constexpr int kBlocks = kFirst == Cell::kGates ? 1 : 2;

  static BPPSA_TABLE int begin(int block) { return block ? kFirst : 0; }
  static BPPSA_TABLE int gates(int block) { return block ? Cell::kGates - kFirst : kFirst; }
};

// What a forward saves of a step of a sample, in rows of H numbers: the slots (or what an RNN
// shows), with two states c as the formula leaves it and as the step does, and of what is
// normalised its gates. Behind them, if normalised: the scales of up to two blocks; mean and scale
// of c.
template <class Cell, bool kNormalised>
struct SavedRow {
  static constexpr int kSlots = Cell::kKept ? Cell::kSlots : 1;
  static constexpr int kC = kSlots, kCAfter = kC + 1;
  static constexpr int kSums = kSlots + (Cell::kStates == 2 ? 2 : 0);
  static constexpr int kRows = kSums + (kNormalised ? Cell::kGates : 0);
  static constexpr int kMoments = 4;

  static BPPSA_TABLE int64_t width(int64_t H) { return kRows * H + (kNormalised ? kMoments : 0); }
};

}  // namespace bppsa::BPPSA_BACKEND
