// The formulas of all rows of list.h, and what they must agree in.
#pragma once

#include "gru.h"
#include "list.h"
#include "lstm.h"
#include "rnn.h"

namespace bppsa::BPPSA_BACKEND {

#define CELL(name, Formula, ...)                                                 \
  static_assert(Formula::kRows == Formula::kFirstRecurrentRow + Formula::kGates, \
                #name ": the last kGates rows of d go with W_hh");
BPPSA_CELLS(CELL)
#undef CELL

}  // namespace bppsa::BPPSA_BACKEND
