// The recurrent cells, a row each: the name that operators know the cell by, and its formula, the
// struct in cells/ that says what a unit does. CMake reads the rows too (cuda/cuda.cmake).
#pragma once

#define BPPSA_CELLS(ROW)   \
  ROW(rnn_tanh, RnnTanh)   \
  ROW(rnn_relu, RnnRelu)   \
  ROW(gru, Gru)            \
  ROW(lstm, Lstm)
