// The dtypes that a plan may name.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace tessera::plan {

// `float32`, `float64`, `bfloat16`, `float16`: as PyTorch prints them. Throws for another dtype.
std::string name_of(c10::ScalarType dtype);
std::optional<c10::ScalarType> try_parse_dtype(std::string_view text);

// Of an empty text nothing; of one that names none of them: throws PlanError, which calls it the `what`.
std::optional<c10::ScalarType> parse_dtype(std::string_view text, const char* what);

// The names, for messages.
std::string accepted_dtypes();

}  // namespace tessera::plan
