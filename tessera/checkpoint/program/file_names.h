// Parameters as other libraries' files name and lay them out, on the way to a checkpoint and back.
#pragma once

#include <string>

#include "tessera/catalogue/name_map.h"
#include "tessera/checkpoint/ranks/contents.h"

namespace tessera::checkpoint {

// The value under which a checkpoint says in which form its parameters are; without it they are as the program has
// them.
constexpr const char* kForm = "form of parameters";

// Parameters and buffers as `names` has them, their aliases too: where the form changes a copy, at the layout that
// follows from it; the rest shares memory with what is given. What an optimizer keeps stays as it is. With the value
// kForm if any form changes. Throws DataError if no rule is for a name. Collective over the tensors' meshes.
Contents as_in_files(Contents own, const catalogue::NameMap& names);

// What kForm is for these names; empty if no form changes.
std::string form_of(const catalogue::NameMap& names);

// Throws DataError if a checkpoint, which `source` names, has parameters in another form than `contents`.
void verify_form(const catalogue::Values& found, const Contents& contents, const std::string& source);

// Copies what was loaded into `in_files`, which as_in_files made of `own`, back to `own`. Collective as it.
void take_from_files(const Contents& in_files, const Contents& own, const catalogue::NameMap& names);

}  // namespace tessera::checkpoint
