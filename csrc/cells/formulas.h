// The formulas of all rows of list.h, for sources that compile several cells.
#pragma once

#include "gru.h"
#include "ligru.h"
#include "lstm.h"
#include "peephole.h"
#include "rnn.h"
