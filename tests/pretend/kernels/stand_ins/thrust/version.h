// In place of Thrust's header: CuPy's module says this version, and sorts by libraries/sorting.cpp.
#pragma once
#define THRUST_VERSION 300000
