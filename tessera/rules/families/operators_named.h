// Operators by the names that people give them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::rules {

// Those that compute new tensors and that the name means, with namespace and overload, sorted: an operator as the
// ledger and `explain` print it (`aten::add.Tensor`), also without its overload and its namespace (`mm`), or what a
// program calls that runs as others (`linear`, `scaled_dot_product_attention`). Throws PlanError with the nearest name
// if there is none, and says so if it is one that writes, is a view, or gives something else than tensors.
std::vector<std::string> operators_named(std::string_view name);

}  // namespace tessera::rules
