// What the scheduler of lanes (runtime.cpp), the wave operations (wave.cpp) and the memory checks (memory.cpp) share.
#pragma once
#include <string>

#include "wave.h"

namespace emulated {

// Where the program is: the work-group, and counters that tell which accesses are ordered. Barriers order the lanes of a work-group,
// operations of a whole wave order its lanes; nothing orders work-groups.
struct Now {
  AttnIndex block;
  int group = 0;    // number of the work-group in this launch
  int barrier = 0;  // barriers so far, never set back during a launch
  int wave = 0;     // operations of waves, and barriers, so far
  int lane = -1;    // thread of the work-group that runs; -1: none
};
extern Now now;
extern bool flush_subnormals;
extern bool failed;

// Remembers the first error, with the place in the program; `caller` is an address in the kernel's code.
void fail(const std::string &what, const void *caller);
// The same from inside a lane: the run ends.
[[noreturn]] void stop(const std::string &what, const void *caller);

// Executes an operation whose 64 lanes are `ops`; "" or what is wrong.
std::string execute(AttnWaveOp *const *ops);

bool is_on_stack(const char *address, size_t bytes);
void forget_accesses();       // at the start of a launch
void clear_shared_memory();   // at the start of a work-group: all bytes 0xff, which is NaN

}  // namespace emulated
