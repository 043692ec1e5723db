// A catalogue as text, and back.
#pragma once

#include <string>
#include <string_view>

#include "tessera/catalogue/catalogue.h"

namespace tessera::catalogue {

// The version of the text that is written; newer ones are refused.
constexpr int kCatalogueVersion = 1;

// JSON of one line an entry, so that two catalogues differ line by line:
//
//     {"version": 1,
//     "meshes": [
//     {"axes": "dp=2,tp=4"},
//     {"axes": "x=3", "ranks": [4, 2, 3]}],
//     "entries": [
//     {"name": "w", "role": "parameter", "dtype": "float32", "sizes": [8, 4], "mesh": 0, "layout": "{tp: S(0)}"}],
//     "values": {
//     "step": 100}}
//
// A mesh is written once, its ranks where they are not 0, 1, ... in order as runs (base::Runs); nothing of the
// text grows with ranks times tensors. Aliases stand in "aliases" where there are any. Throws where a name or value is
// not UTF-8.
std::string to_json(const Catalogue& catalogue);

// Throws DataError that names `source`, the entry and the field, and what is accepted: where the text is not JSON, a
// field is missing, unknown, there twice or of another type, where sizes have more bytes than int64 counts, or the
// catalogue is none.
Catalogue from_json(std::string_view text, const std::string& source);

}  // namespace tessera::catalogue
