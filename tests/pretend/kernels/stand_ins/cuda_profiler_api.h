// In place of CUDA's header, which comes in a package of its own.
#pragma once
extern "C" {
int cudaProfilerStart();
int cudaProfilerStop();
}
