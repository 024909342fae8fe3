// What stands before a kernel that includes nothing, when the host's compiler compiles it. Compiled ahead, once.
#pragma once
#include "words.h"

#include "threads.h"

#include "launching.h"

#include "numbers.h"

#include "functions.h"

#include "atomics.h"
