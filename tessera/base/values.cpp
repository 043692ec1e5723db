#include "tessera/base/values.h"

namespace tessera::base {
namespace {

thread_local bool lacks_values = false;

}  // namespace

WithoutValues::WithoutValues() : before_(lacks_values) { lacks_values = true; }
WithoutValues::~WithoutValues() { lacks_values = before_; }

bool has_values() { return !lacks_values; }

}  // namespace tessera::base
