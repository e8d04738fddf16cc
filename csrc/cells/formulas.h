// The formulas of all rows of list.h.
#pragma once

#include "gru.h"
#include "lstm.h"
#include "rnn.h"
