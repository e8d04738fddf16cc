// The recurrent cells, a row each: CELL(name, formula, file, gates, states, kept).
//
//   name      as the operators call it
//   formula   the struct, in <file>.h
//   gates     blocks of H rows in W_ih and W_hh
//   states    1: h, 2: h and c
//   kept      numbers a unit that a forward with Keep::all keeps; with Keep::least c alone
//
// The build compiles the kernels of each row by themselves, from its formula alone (CMakeLists.txt
// reads this list).
#pragma once

#define BPPSA_CELLS(CELL)               \
  CELL(rnn_tanh, RnnTanh, rnn, 1, 1, 0) \
  CELL(rnn_relu, RnnRelu, rnn, 1, 1, 0) \
  CELL(gru, Gru, gru, 3, 1, 4)          \
  CELL(ligru, LiGru, ligru, 2, 1, 4)    \
  CELL(lstm, Lstm, lstm, 4, 2, 5)       \
  CELL(peephole, Peephole, peephole, 4, 2, 5)

namespace bppsa {

enum class CellKind : int {
#define CELL(name, ...) name,
  BPPSA_CELLS(CELL)
#undef CELL
};

struct CellRow {
  const char* name;
  int gates, states, kept;
};

constexpr CellRow kCells[] = {
#define CELL(name, formula, file, gates, states, kept) {#name, gates, states, kept},
    BPPSA_CELLS(CELL)
#undef CELL
};

constexpr const CellRow& row_of(CellKind cell) { return kCells[int(cell)]; }

}  // namespace bppsa
