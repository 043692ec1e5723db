// Documents, one JSON object a line.
#pragma once

#include <string_view>

#include <c10/util/FunctionRef.h>

#include "tessera/data/mapped_file.h"

namespace tessera::data {

// Calls `document(text)` with the member "text" of each line's object, in order; other members and blank lines are
// passed over. Throws DataError that names the line which is no JSON, or whose object has no such text.
void for_each_document(const MappedFile& file, c10::function_ref<void(std::string_view)> document);

}  // namespace tessera::data
