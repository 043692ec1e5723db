// Which line of the program calls the operator that runs now.
#pragma once

#include <string>

#include "tessera/watch/places.h"

namespace tessera::watch {

// Has call_place() ask `locate`, for programs in another language. Before the first rank is made.
void set_call_locate(Places::Locate locate);

// Where the calling thread is in the program: what `locate` says, or else its calls, innermost first, as
// `PROGRAM+0x1234;...`: those that are neither in this library nor in libtorch's. For call_line.
std::string call_place();

// The source line of such a place, such as `train.cpp:30`: of the innermost call that is not in a header of libtorch,
// the standard library or tessera. Asks addr2line; empty if that is not there or the program was compiled without -g. A
// place that is a line already stays.
std::string call_line(const std::string& place);

}  // namespace tessera::watch
