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
// shows), with two states c as the formula leaves it, and of what is normalised its gates. Behind
// them
//   moments          if normalised, kMomentsOfRow: the scales of up to two blocks; mean and scale
//                    of c; the scales of the input's blocks
//   c, once more     with two states, as the step leaves it where it blends new and old ones
//   the input's sums normalised, all gates, where the request keeps them
template <class Cell, bool kNormalised>
struct SavedRow {
  static constexpr int kSlots = Cell::kKept ? Cell::kSlots : 1;
  static constexpr int kC = kSlots;
  static constexpr int kSums = kSlots + (Cell::kStates == 2);
  static constexpr int kRows = kSums + (kNormalised ? Cell::kGates : 0);
  static constexpr int kMoments = kNormalised ? kMomentsOfRow : 0;
  static constexpr int kMomentsOfC = 2, kMomentsOfInput = 4;  // the first

  // Where c is as the step leaves it.
  static BPPSA_TABLE int64_t c_after(int64_t H, bool blends) {
    return blends ? kRows * H + kMoments : kC * H;
  }
  static BPPSA_TABLE int64_t input(int64_t H, bool blends) {
    return kRows * H + kMoments + (Cell::kStates == 2 && blends ? H : 0);
  }
};

}  // namespace bppsa::BPPSA_BACKEND
